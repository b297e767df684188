package layout

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

func newLayout(t *testing.T) Layout {
	t.Helper()
	rootonly.Test(t)
	l, err := At(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// R11: folders get exactly their modes, whatever the umask and whatever they
// had, as long as nobody else could write them.
func TestPrepare(t *testing.T) {
	l := newLayout(t)
	deployments := map[string]bool{"host": false, "box": true}
	for _, umask := range []int{0o000, 0o077} {
		old := unix.Umask(umask)
		err := l.Prepare(deployments)
		unix.Umask(old)
		if err != nil {
			t.Fatal(err)
		}
		folders := l.Folders(deployments)
		if len(folders) != 17 {
			t.Errorf("there are %d folders", len(folders))
		}
		for _, f := range folders {
			if st, err := os.Lstat(f.Path); err != nil || st.Mode() != os.ModeDir|f.Mode {
				t.Errorf("%s: %v, %v, want %v", f.Path, st.Mode(), err, f.Mode)
			}
			// The next round finds another mode.
			if err := os.Chmod(f.Path, 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// What someone else made or could write is not used.
func TestPrepareRefuses(t *testing.T) {
	for name, plant := range map[string]func(l Layout) error{
		"a link":        func(l Layout) error { return os.Symlink("/tmp", l.Run) },
		"a file":        func(l Layout) error { return os.WriteFile(l.Run, nil, 0o600) },
		"open to all":   func(l Layout) error { return errors.Join(os.Mkdir(l.Run, 0o755), os.Chmod(l.Run, 0o777)) },
		"of a user":     func(l Layout) error { return errors.Join(os.Mkdir(l.Run, 0o755), os.Chown(l.Run, 1000, 1000)) },
		"of a group":    func(l Layout) error { return errors.Join(os.Mkdir(l.Run, 0o755), os.Chmod(l.Run, 0o770)) },
		"link as child": func(l Layout) error { return errors.Join(os.Mkdir(l.Run, 0o755), os.Symlink("/tmp", l.Run+"/d")) },
	} {
		l := newLayout(t)
		if err := plant(l); err != nil {
			t.Fatal(err)
		}
		if err := l.Prepare(nil); wire.CodeOf(err) != wire.CodeInvalidConfig {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Prefixes that are not paths in their shortest form are refused.
func TestAt(t *testing.T) {
	for _, prefix := range []string{"x", "./x", "/", "/x/", "/x/../y", "/x//y"} {
		if _, err := At(prefix); wire.CodeOf(err) != wire.CodeInvalidConfig {
			t.Errorf("%q: got %v", prefix, err)
		}
	}
	if l, err := At(""); err != nil || l != Default {
		t.Errorf("got %v, %v", l, err)
	}
}

// R32: what a session has left is found in each folder, also a home alone,
// and what bears no session's id is nobody's.
func TestTraces(t *testing.T) {
	l, err := At(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]wire.SessionID{}
	for i, dir := range []string{l.Mounts(), l.Bundles(), l.Spools(), l.States()} {
		ids[dir] = wire.SessionID(fmt.Sprintf("%032x", i+1))
		if err := os.MkdirAll(dir+"/"+string(ids[dir]), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	home := l.Session("one", false, wire.SessionID(fmt.Sprintf("%032x", 9))).Home
	for _, path := range []string{home, l.RootfsPin(), l.Mounts() + "/x.home", l.States() + "/.doctor-1"} {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	found, err := l.Traces()
	last := Trace{Session: wire.SessionID(fmt.Sprintf("%032x", 9)), Kind: wire.FoundMount, Path: home}
	if err != nil || len(found) != 5 || found[4] != last {
		t.Errorf("got %v, %v", found, err)
	}
}
