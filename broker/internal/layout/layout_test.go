package layout

import (
	"errors"
	"os"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

func newLayout(t *testing.T) Layout {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: folders must be root's")
	}
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
		if len(folders) != 15 {
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

// R32: of what lies in the folders only what bears a session's id is a
// session's: the pin of the rootfs is none.
func TestTraces(t *testing.T) {
	l := newLayout(t)
	if err := l.Prepare(nil); err != nil {
		t.Fatal(err)
	}
	id := wire.SessionID(strings.Repeat("0", 32))
	for _, dir := range []string{l.RootfsPin(), l.Session("d", false, id).Pin} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	traces, err := l.Traces()
	if _, found := traces[id]; err != nil || len(traces) != 1 || !found {
		t.Errorf("got %v, %v", traces, err)
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
