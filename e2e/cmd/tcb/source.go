package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"regexp"
	"strings"
)

// source is one file, with what of it is counted.
type source struct {
	// lines are the numbers of the lines that have something on them.
	lines map[int]bool
	// functions are by the name that they have in the program, without the
	// path of the package.
	functions map[string][]span
	// capabilities are what the file says stays, if it does.
	capabilities []string
}

// span is the first and the last line of a function.
type span struct{ first, last int }

func readSource(path string) (*source, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	s := &source{lines: make(map[int]bool), functions: make(map[string][]span)}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := functionName(d)
			s.functions[name] = append(s.functions[name], span{files.Position(d.Pos()).Line, files.Position(d.End()).Line})
		case *ast.GenDecl:
			s.capabilities = append(s.capabilities, keptCapabilities(d)...)
		}
	}
	return s, s.scan(text)
}

// scan finds the lines that a token is on; one that is a semicolon only the
// compiler sees.
func (s *source) scan(text []byte) error {
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(text))
	var in scanner.Scanner
	var failed error
	in.Init(file, text, func(at token.Position, message string) { failed = fmt.Errorf("%v: %s", at, message) }, 0)
	for {
		at, tok, literal := in.Scan()
		if tok == token.EOF {
			return failed
		}
		if tok == token.SEMICOLON && literal == "\n" {
			continue
		}
		first := files.Position(at).Line
		for i := range strings.Count(literal, "\n") + 1 {
			s.lines[first+i] = true
		}
	}
}

// count adds up the lines. A function that the program has is one that kept
// reports by its name.
func (s *source) count(kept func(string) bool) counts {
	c := counts{Lines: len(s.lines)}
	for name, spans := range s.functions {
		for _, f := range spans {
			n := 0
			for line := f.first; line <= f.last; line++ {
				if s.lines[line] {
					n++
				}
			}
			c.Functions += n
			if kept(name) {
				c.Kept += n
			}
		}
	}
	return c
}

// functionName is the linker's name of a function, without the package and
// without type parameters.
func functionName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	t := d.Recv.List[0].Type
	star, pointer := t.(*ast.StarExpr)
	if pointer {
		t = star.X
	}
	switch generic := t.(type) {
	case *ast.IndexExpr:
		t = generic.X
	case *ast.IndexListExpr:
		t = generic.X
	}
	name := t.(*ast.Ident).Name
	if pointer {
		name = "(*" + name + ")"
	}
	return name + "." + d.Name.Name
}

var capability = regexp.MustCompile(`^CAP_[A-Z_]+$`)

// keptCapabilities returns the CAP_… constants in a package's variable "needed":
// it is from that list that a program drops all others.
func keptCapabilities(d *ast.GenDecl) []string {
	var found []string
	for _, spec := range d.Specs {
		v, ok := spec.(*ast.ValueSpec)
		if !ok || d.Tok != token.VAR || v.Names[0].Name != "needed" {
			continue
		}
		for _, value := range v.Values {
			ast.Inspect(value, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && capability.MatchString(id.Name) {
					found = append(found, id.Name)
				}
				return true
			})
		}
	}
	return found
}
