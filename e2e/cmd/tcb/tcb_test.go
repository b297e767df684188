package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// R20: what is counted is what is in the program: also a function that is
// inlined everywhere, not one that nothing calls.
func TestProgram(t *testing.T) {
	r, err := examine("./testdata/program")
	if err != nil {
		t.Fatal(err)
	}
	want := counts{Lines: 31, Functions: 19, Kept: 12}
	if r.counts != want || len(r.Packages) != 1 || r.Packages[0].counts != want || r.Packages[0].Path != "e2e/cmd/tcb/testdata/program" {
		t.Errorf("got %+v, want %+v in %+v", r.counts, want, r.Packages)
	}
	if !slices.Equal(r.Capabilities, []string{"CAP_CHOWN", "CAP_SETUID"}) || len(r.Modules) != 0 {
		t.Errorf("got the capabilities %q and the modules %+v", r.Capabilities, r.Modules)
	}
}

// R20: the report of the broker itself names what is known to be in it.
func TestBroker(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if got := run([]string{"--json", "--program", "../../../broker/cmd/paseo-sandbox-broker"}, &stdout, &stderr); got != 0 {
		t.Fatalf("exit %d, %s", got, &stderr)
	}
	var r report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if r.Aim != aim || r.Kept == 0 || r.Kept > r.Functions || r.Functions > r.Lines {
		t.Errorf("got %+v", r.counts)
	}
	sum := counts{}
	paths := []string{}
	for _, p := range r.Packages {
		sum.add(p.counts)
		paths = append(paths, p.Path)
	}
	if sum != r.counts || !slices.Contains(paths, "broker/internal/server") || !slices.Contains(paths, "wire") || !slices.Contains(paths, "broker/cmd/paseo-sandbox-broker") {
		t.Errorf("%+v in all, of %q", r.counts, paths)
	}
	// R19, R2: what reads the audit, the operator's command and the bridge are
	// not in it.
	for _, p := range paths {
		if strings.HasSuffix(p, "audit/trail") || strings.HasSuffix(p, "broker-admin") || strings.HasPrefix(p, "bridge/") || strings.HasPrefix(p, "shared/client") || strings.HasSuffix(p, "_test") {
			t.Errorf("%s is in the program that runs as root", p)
		}
	}
	direct := map[string]bool{}
	for _, m := range r.Modules {
		direct[m.Path] = m.Direct
		if m.Version == "" {
			t.Errorf("%s has no version", m.Path)
		}
	}
	if !direct["golang.org/x/sys"] || direct["github.com/x448/float16"] || direct["github.com/spf13/cobra"] {
		t.Errorf("got the modules %+v", r.Modules)
	}
}

// Types as arguments are no part of a name.
func TestPlain(t *testing.T) {
	for name, want := range map[string]string{
		"a/b.f[go.shape.func([]uint8) map[string][]int]":  "a/b.f",
		"a/b.(*T[go.shape.[]uint8,go.shape.int]).m.func1": "a/b.(*T).m.func1",
		"main.f": "main.f",
	} {
		if got := plain(name); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Lines are counted by their tokens, and functions named as the linker does.
func TestSource(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.go")
	text := "package a\n\n/* x\n*/ type T[K, V any] struct{}\n// y\nvar s = `a\n\nb` + /*\n*/ \"c\"\n\nfunc (T[K, V]) v() {}\nfunc (*T[_, _]) p() {\n\n}\nfunc f() {}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := readSource(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string][]span{"T.v": {{11, 11}}, "(*T).p": {{12, 14}}, "f": {{15, 15}}}; !reflect.DeepEqual(s.functions, want) {
		t.Errorf("got %v, want %v", s.functions, want)
	}
	if got, want := s.count(func(name string) bool { return name == "(*T).p" }), (counts{Lines: 10, Functions: 4, Kept: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// What can't be counted is an error, not a nought.
func TestErrors(t *testing.T) {
	var stdout, stderr bytes.Buffer
	for _, c := range []struct {
		args []string
		want int
	}{{[]string{"--lines"}, 2}, {[]string{"x"}, 2}, {[]string{"--program", "./testdata/none"}, 1}, {[]string{"--program", "."}, 0}} {
		stdout.Reset()
		stderr.Reset()
		if got := run(c.args, &stdout, &stderr); got != c.want || (got != 0) != (stderr.Len() > 0) {
			t.Errorf("%q: exit %d, %q", c.args, got, &stderr)
		}
	}
	if !strings.Contains(stdout.String(), "lines") || !strings.Contains(stdout.String(), "e2e/cmd/tcb") || !strings.Contains(stdout.String(), "drops none") {
		t.Errorf("got\n%s", &stdout)
	}
}
