package main

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"debug/dwarf"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// examine builds the program of the package and looks at what is in it.
func examine(program string) (report, error) {
	r := report{Program: program, Aim: aim}
	dir, err := os.MkdirTemp("", "tcb-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	built := filepath.Join(dir, "program")
	if _, err := command("build", "-trimpath", "-o", built, program); err != nil {
		return r, err
	}
	functions, err := functionsOf(built)
	if err != nil {
		return r, err
	}
	if r.Modules, err = modulesOf(built); err != nil {
		return r, err
	}
	return r, r.countPackages(functions)
}

// command runs go for programs as they are shipped, and returns what it says.
func command(args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", args[0], err, &stderr)
	}
	return out, nil
}

// countPackages counts the packages of the program's own module.
func (r *report) countPackages(functions map[string]bool) error {
	out, err := command("list", "-deps", "-json=ImportPath,Name,Dir,GoFiles,Module", r.Program)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(out))
	for {
		var p struct {
			ImportPath, Name, Dir string
			GoFiles               []string
			Module                *struct {
				Path string
				Main bool
			}
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		if p.Module == nil || !p.Module.Main {
			continue
		}
		linked := cmp.Or(map[bool]string{true: "main"}[p.Name == "main"], p.ImportPath) + "."
		counted := pkg{Path: strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, p.Module.Path), "/")}
		for _, name := range p.GoFiles {
			s, err := readSource(filepath.Join(p.Dir, name))
			if err != nil {
				return err
			}
			counted.add(s.count(func(name string) bool { return functions[linked+name] }))
			r.Capabilities = append(r.Capabilities, s.capabilities...)
		}
		r.add(counted.counts)
		r.Packages = append(r.Packages, counted)
	}
	slices.SortFunc(r.Packages, func(a, b pkg) int { return cmp.Compare(b.Lines, a.Lines) })
	return nil
}

// inner is what the compiler adds to a function's name for what it makes of
// the function's inside.
var inner = regexp.MustCompile(`^(.*?)(\.(func|gowrap|deferwrap)\d.*|-fm|-range\d.*)$`)

// plain is a function's name without the arguments of its types.
func plain(name string) string {
	depth := 0
	return strings.Map(func(r rune) rune {
		switch r {
		case '[':
			depth++
			return -1
		case ']':
			depth--
			return -1
		}
		if depth > 0 {
			return -1
		}
		return r
	}, name)
}

// functionsOf returns the names of the functions in a program, also of those
// that are only inlined into others, which have no symbol: its debugging
// information (DWARF) has both. It has none of a function that was inlined and
// of which no instruction is left.
func functionsOf(built string) (map[string]bool, error) {
	f, err := elf.Open(built)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := f.DWARF()
	if err != nil {
		return nil, err
	}
	names := make(map[string]bool)
	for in := data.Reader(); ; {
		e, err := in.Next()
		if err != nil {
			return nil, err
		}
		if e == nil && len(names) == 0 {
			return nil, errors.New("the program has no debugging information")
		}
		if e == nil {
			return names, nil
		}
		if e.Tag != dwarf.TagSubprogram {
			continue
		}
		in.SkipChildren()
		if name, ok := e.Val(dwarf.AttrName).(string); ok {
			name = plain(name)
			names[name] = true
			if m := inner.FindStringSubmatch(name); m != nil {
				names[m[1]] = true
			}
		}
	}
}

// modulesOf returns the modules of others that are linked into a program.
func modulesOf(built string) ([]module, error) {
	info, err := buildinfo.ReadFile(built)
	if err != nil {
		return nil, err
	}
	out, err := command("mod", "edit", "-json")
	if err != nil {
		return nil, err
	}
	var required struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &required); err != nil {
		return nil, err
	}
	all := []module{}
	for _, m := range info.Deps {
		direct := false
		for _, r := range required.Require {
			direct = direct || r.Path == m.Path && !r.Indirect
		}
		all = append(all, module{Path: m.Path, Version: m.Version, Direct: direct})
	}
	return all, nil
}
