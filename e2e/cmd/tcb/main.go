package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
)

// aim is how many lines of our own should run as root at most, in all.
const aim = 4000

// report is what the command finds.
type report struct {
	Program string `json:"program"`
	Aim     int    `json:"aim"`
	// Lines, Functions and Kept are the sums over the packages.
	counts
	Packages []pkg    `json:"packages"`
	Modules  []module `json:"modules"`
	// Capabilities are those that stay; null means all of root's, because no
	// list of them was found.
	Capabilities []string `json:"capabilities"`
}

type pkg struct {
	Path string `json:"path"`
	counts
}

// counts are lines with something on them that is neither space nor comment.
type counts struct {
	Lines int `json:"lines"`
	// Functions are those of them in functions, and Kept those in functions
	// that are in the program; the others are types, constants, variables.
	Functions int `json:"linesInFunctions"`
	Kept      int `json:"linesInKeptFunctions"`
}

func (c *counts) add(d counts) {
	c.Lines += d.Lines
	c.Functions += d.Functions
	c.Kept += d.Kept
}

type module struct {
	Path    string `json:"path"`
	Version string `json:"version"`
	Direct  bool   `json:"direct"`
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	f := flag.NewFlagSet("tcb", flag.ContinueOnError)
	f.SetOutput(stderr)
	asJSON := f.Bool("json", false, "print JSON")
	program := f.String("program", "./broker/cmd/paseo-sandbox-broker", "the package of the program that is counted")
	if err := f.Parse(args); err != nil {
		return 2
	}
	if f.NArg() != 0 {
		fmt.Fprintf(stderr, "usage: there is no argument %q\n", f.Arg(0))
		return 2
	}
	r, err := examine(*program)
	if err == nil && *asJSON {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		err = e.Encode(r)
	} else if err == nil {
		err = r.print(stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, "tcb:", err)
		return 1
	}
	return 0
}

func (r report) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "lines\tin functions\tin kept functions\t  of our own linked into %s\n", r.Program)
	for _, p := range append(r.Packages, pkg{Path: "in all", counts: r.counts}) {
		fmt.Fprintf(w, "%d\t%d\t%d\t  %s\n", p.Lines, p.Functions, p.Kept, p.Path)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	verdict := "within"
	if r.Lines > r.Aim {
		verdict = fmt.Sprintf("%d above", r.Lines-r.Aim)
	}
	fmt.Fprintf(out, "\nThat is %s the aim of %d lines. Tests, blank lines and comments are not counted.\n\nmodules linked in:\n", verdict, r.Aim)
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, m := range r.Modules {
		kind := "indirect"
		if m.Direct {
			kind = "direct"
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\n", kind, m.Path, m.Version)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	kept := "all of root's: the program drops none"
	if r.Capabilities != nil {
		kept = strings.Join(r.Capabilities, ", ")
	}
	_, err := fmt.Fprintf(out, "\ncapabilities that it keeps: %s\n", kept)
	return err
}
