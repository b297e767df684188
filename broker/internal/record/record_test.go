package record

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func newStore(t testing.TB) *Store {
	t.Helper()
	rootonly.Test(t)
	dir, err := os.MkdirTemp("", "rec-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return Open(dir)
}

func example() Record {
	return Record{
		Session: "0198c0de00007000800000000000beef", Deployment: "local", Workspace: "project", Profile: "pi",
		State: wire.StateCreating, Epoch: "0011223344556677", CreatedAt: 1, Boot: "b", BridgeUID: 2000000,
	}
}

func load(t testing.TB, s *Store) []Record {
	t.Helper()
	all, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// What is saved is loaded, whatever it is; the last save counts; removing is
// idempotent.
func TestSaveLoadRemove(t *testing.T) {
	s := newStore(t)
	rapid.Check(t, func(rt *rapid.T) {
		r := example()
		r.State = rapid.SampledFrom([]wire.State{wire.StateRunning, wire.StateExited, wire.StateDeleting}).Draw(rt, "state")
		r.Bridge = process.ID{PID: rapid.IntRange(0, 1<<22).Draw(rt, "pid"), Start: rapid.Uint64().Draw(rt, "start")}
		r.Container = rapid.Bool().Draw(rt, "container")
		if rapid.Bool().Draw(rt, "exited") {
			r.Exit = &wire.Exit{Code: 137, Signal: "KILL", Reason: wire.ReasonOutOfMemory}
		}
		if err := s.Save(example()); err != nil {
			rt.Fatal(err)
		}
		if err := s.Save(r); err != nil {
			rt.Fatal(err)
		}
		all := load(t, s)
		if len(all) != 1 || all[0].State != r.State || all[0].Bridge != r.Bridge || all[0].Container != r.Container || (all[0].Exit == nil) != (r.Exit == nil) {
			rt.Fatalf("got %+v, want %+v", all, r)
		}
	})
	for range 2 {
		if err := s.Remove(example().Session); err != nil {
			t.Fatal(err)
		}
	}
	if all := load(t, s); len(all) != 0 {
		t.Errorf("after removal there is %+v", all)
	}
}

// R33: a crash in the middle of a save leaves the old record or the new one.
func TestInterruptedSave(t *testing.T) {
	s := newStore(t)
	if err := s.Save(example()); err != nil {
		t.Fatal(err)
	}
	tmp := s.path(example().Session) + partial
	if err := os.WriteFile(tmp, []byte(`{"version": 1, "sess`), 0o600); err != nil {
		t.Fatal(err)
	}
	if all := load(t, s); len(all) != 1 || all[0].State != wire.StateCreating {
		t.Errorf("got %+v, want the old record", all)
	}
	if _, err := os.Stat(tmp); !os.IsNotExist(err) {
		t.Errorf("the interrupted file is still there: %v", err)
	}
}

// A disk that is full is an error, and the old record stays.
func TestFailedSave(t *testing.T) {
	s := newStore(t)
	if err := unix.Mount("tmpfs", s.dir, "tmpfs", 0, "size=4096"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(s.dir, unix.MNT_DETACH)
	if err := os.Chmod(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(example()); err != nil {
		t.Fatal(err)
	}
	r := example()
	r.State = wire.StateRunning
	if err := s.Save(r); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("got %v, want ENOSPC", err)
	}
	if all := load(t, s); len(all) != 1 || all[0].State != wire.StateCreating {
		t.Errorf("got %+v, want the old record", all)
	}
}

// A record that can't be understood stops the broker, and says which it is.
func TestRefusals(t *testing.T) {
	good := func(t *testing.T, s *Store) string {
		if err := s.Save(example()); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(s.path(example().Session))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for name, c := range map[string]struct {
		change func(string) string
		code   wire.Code
	}{
		"empty":         {func(string) string { return "" }, CodeInvalidRecord},
		"torn":          {func(s string) string { return s[:len(s)/2] }, CodeInvalidRecord},
		"unknown key":   {func(s string) string { return strings.Replace(s, `"boot"`, `"root"`, 1) }, CodeInvalidRecord},
		"version":       {func(s string) string { return strings.Replace(s, `"version": 1`, `"version": 2`, 1) }, CodeInvalidRecord},
		"state":         {func(s string) string { return strings.Replace(s, `"creating"`, `"flying"`, 1) }, CodeInvalidRecord},
		"deployment":    {func(s string) string { return strings.Replace(s, `"local"`, `"../x"`, 1) }, CodeInvalidRecord},
		"two":           {func(s string) string { return s + s }, CodeInvalidRecord},
		"other session": {func(s string) string { return strings.Replace(s, "beef", "dead", 1) }, CodeInvalidRecord},
		"too long":      {func(s string) string { return s + strings.Repeat(" ", maxFile) }, wire.CodeInvalidConfig},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			path := s.path(example().Session)
			if err := os.WriteFile(path, []byte(c.change(good(t, s))), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := s.Load()
			if wire.CodeOf(err) != c.code || !strings.Contains(err.Error(), filepath.Base(path)) {
				t.Errorf("got %v, want %s with the file's name", err, c.code)
			}
		})
	}
	t.Run("not root's", func(t *testing.T) {
		s := newStore(t)
		good(t, s)
		if err := os.Chown(s.path(example().Session), 1000, 1000); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Load(); wire.CodeOf(err) != wire.CodeInvalidConfig {
			t.Errorf("got %v", err)
		}
	})
}
