package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
)

// mutantsVariable makes TestMutantsAreCaught try all mutants.
const mutantsVariable = "PASEO_SANDBOX_MUTANTS"

// edit replaces one piece of a source file, which must occur exactly once.
type edit struct{ file, before, after string }

// mutant is a bridge, or the broker that the tests play, with one rule of
// custody broken. Its test must fail.
type mutant struct {
	name, test string
	quick      bool
	root       bool // the test needs it
	edits      []edit
}

var mutants = []mutant{
	{
		name: "starts the next bridge before the last one is dead",
		test: "TestKilledBridgeLosesNothing",
		edits: []edit{{"crash_test.go", "\tk.kill(t)\n\treturn launch(t, r)\n",
			"\tnext := launch(t, r)\n\t<-time.After(200 * time.Millisecond)\n\tk.kill(t)\n\treturn next\n"}},
	},
	{
		// What is beyond it for long is what a full disk has left of an input.
		name:  "splices input to the end of the file, beyond the committed end",
		test:  "TestDiskFullAtEveryStep",
		root:  true,
		edits: []edit{{"../session/stdin.go", "int(min(n, inputTransfer))", "inputTransfer"}},
	},
	{
		name: "answers accepted before the commit",
		test: "TestKilledBridgeLosesNothing",
		edits: []edit{{"../serve/input.go", "\tif err == nil {\n\t\tduplicate, err = ",
			"\tif err == nil {\n\t\tc.answer(m.ID, wire.Accepted{ID: m.ID, InputID: id}, nil)\n\t\t_, _ = c.server.session.Input(c.client, m.Lease, id, data)\n\t\treturn nil\n\t}\n\tif err == nil {\n\t\tduplicate, err = "}},
	},
	{
		name: "punches before the floor is raised",
		test: "TestKilledBridgeLosesNothing",
		edits: []edit{{"../session/floor.go", "\tif err := s.control.SetFloor(floor); err != nil {\n",
			"\ts.floor = floor\n\ts.mu.Unlock()\n\ts.free()\n\ts.mu.Lock()\n\tif err := s.control.SetFloor(floor); err != nil {\n"}},
	},
	{
		name:  "reads the exit status instead of splicing it",
		test:  "TestKilledBridgeKeepsExit",
		quick: true,
		edits: []edit{
			{"../session/exit.go", "s.cfg.Set.Exit.SpliceTo(s.cfg.Set.ExitSpool, ", "s.cfg.Set.Exit.SpliceTo(exitMemory, "},
			{"../session/exit.go", "s.cfg.Set.ExitSpool.Offset()", "exitMemory.Offset()"},
			{"../session/exit.go", "s.cfg.Set.ExitRead.ReadAt(status, 0)", "exitMemory.ReadAt(status, 0)"},
			{"../session/exit.go", "\nconst (", "\nvar exitMemory = custody.NewFile(func() int { fd, _ := unix.MemfdCreate(\"exit\", 0); return fd }(), \"memory\")\n\nconst ("},
			{"../session/exit.go", "import (", "import (\n\t\"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody\""},
		},
	},
}

// mutantDeadline bounds the building and the storm of one mutant.
const mutantDeadline = 5 * time.Minute

// R48: the storms are worth something: each fails, with words and in time,
// when a rule of custody is broken. One mutant is tried always, all of them
// with the variable set, and with them the code as it is, which must pass.
func TestMutantsAreCaught(t *testing.T) {
	all := os.Getenv(mutantsVariable) != ""
	if all {
		for _, test := range []string{"TestKilledBridgeLosesNothing", "TestKilledBridgeKeepsExit"} {
			if out, err := storm(t, mutant{test: test}); err != nil {
				t.Errorf("%s fails without a mutation: %v\n%s", test, err, out)
			}
		}
	}
	for _, m := range mutants {
		if !all && !m.quick {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			if m.root {
				rootonly.Test(t)
			}
			out, err := storm(t, m)
			var exit *exec.ExitError
			switch {
			case err == nil:
				t.Fatalf("%s passes:\n%s", m.test, out)
			case !errors.As(err, &exit) || strings.Contains(out, "panic: "):
				t.Fatalf("%s does not fail in an orderly way: %v\n%s", m.test, err, out)
			}
			words := regexp.MustCompile(`_test\.go:\d+: .+`).FindString(out)
			if words == "" {
				t.Fatalf("%s fails without words:\n%s", m.test, out)
			}
			t.Logf("caught: %s", words)
		})
	}
}

// storm builds this package's tests with the edits in place and runs one.
func storm(t *testing.T, m mutant) (output string, err error) {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "storm.test")
	ctx, cancel := context.WithTimeout(t.Context(), mutantDeadline)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "test", "-c", "-overlay", m.overlay(t, dir), "-o", binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the mutant can't be built: %v\n%s", err, out)
	}
	run := exec.CommandContext(ctx, binary, "-test.run", "^"+m.test+"$", "-test.v")
	out, err := run.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("%s does not end within %s:\n%s", m.test, mutantDeadline, out)
	}
	return string(out), err
}

// overlay writes the edited files and returns the file that tells the go
// command of them (go help build, -overlay).
func (m mutant) overlay(t *testing.T, dir string) string {
	t.Helper()
	sources := make(map[string]string)
	for _, e := range m.edits {
		path, err := filepath.Abs(e.file)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := sources[path]; !ok {
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			sources[path] = string(source)
		}
		if n := strings.Count(sources[path], e.before); n != 1 {
			t.Fatalf("%s has %q %d times; the mutant has to be brought up to date", e.file, e.before, n)
		}
		sources[path] = strings.Replace(sources[path], e.before, e.after, 1)
	}
	var overlay struct{ Replace map[string]string }
	overlay.Replace = make(map[string]string)
	for path, source := range sources {
		edited := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(edited, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[path] = edited
	}
	data, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return list
}
