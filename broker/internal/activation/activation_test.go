package activation

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// inherit names the socket that a child expects from its parent.
const inherit = "ACTIVATION_TEST_SOCKET"

func TestMain(m *testing.M) {
	if path := os.Getenv(inherit); path != "" {
		os.Exit(playBroker(path))
	}
	os.Exit(m.Run())
}

// playBroker is a broker that systemd started: it accepts one connection.
func playBroker(path string) int {
	if os.Getenv("LISTEN_PID") == "self" {
		os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
	}
	p, err := Receive()
	if err != nil {
		return 1
	}
	if err := checkStored(p); err != nil {
		os.Stderr.WriteString(err.Error())
		return 1
	}
	got, err := p.Listeners([]Socket{{Name: "local", Path: path}})
	if err != nil {
		os.Stderr.WriteString(err.Error())
		return 1
	}
	c, err := got["local"].Accept()
	if err != nil {
		return 1
	}
	c.Close()
	got["local"].Close()
	return 0
}

// wantStored names what a child expects to be kept for it, by name.
const wantStored = "ACTIVATION_TEST_STORED"

// checkStored reports what is not as expected of the stored descriptors, and of
// the environment, where nothing may be left of them.
func checkStored(p *Passed) error {
	names := slices.Sorted(maps.Keys(p.Stored))
	if got := strings.Join(names, ","); got != os.Getenv(wantStored) {
		return fmt.Errorf("stored: %s", got)
	}
	for name, fd := range p.Stored {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			return fmt.Errorf("%s: flags %d, %v", name, flags, err)
		}
	}
	for _, e := range os.Environ() {
		if strings.HasPrefix(e, "LISTEN_") {
			return fmt.Errorf("left: %s", e)
		}
	}
	return nil
}

func needRoot(t *testing.T) string {
	t.Helper()
	rootonly.Test(t)
	return t.TempDir()
}

// R11: what a dead broker left is replaced by a socket of the users; its file
// stays until it is removed.
func TestListen(t *testing.T) {
	path := filepath.Join(needRoot(t), "s")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	old.Close()
	s := Socket{Path: path, UIDs: []uint32{1000, 1001}}
	l, err := Listen(s)
	if err != nil {
		t.Fatal(err)
	}
	// The group's bits are the mask of the access list.
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o660 {
		t.Errorf("got %v, %v", st, err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	l.Close()
	s.UIDs = s.UIDs[:1]
	if err := s.Share(); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", st, err)
	}
	for range 2 {
		if err := s.Remove(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Share(); wire.CodeOf(err) != wire.CodeInvalidConfig {
		t.Errorf("sharing nothing: %v", err)
	}
}

// What is no socket is not removed.
func TestListenOnFile(t *testing.T) {
	path := filepath.Join(needRoot(t), "file")
	if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(Socket{Path: path}); wire.CodeOf(err) != wire.CodeInvalidConfig {
		t.Errorf("got %v", err)
	}
	if b, err := os.ReadFile(path); string(b) != "text" {
		t.Errorf("the file is %q, %v", b, err)
	}
}

// Sockets from systemd are taken by name, and only where they belong.
func TestInherited(t *testing.T) {
	dir := needRoot(t)
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, c := range map[string]struct {
		env  []string
		path string
		says string
	}{
		"good":            {[]string{"LISTEN_PID=self", "LISTEN_FDS=1", "LISTEN_FDNAMES=local"}, path, ""},
		"other pid":       {[]string{"LISTEN_PID=1", "LISTEN_FDS=1", "LISTEN_FDNAMES=local"}, path, "no sockets"},
		"none":            {[]string{"LISTEN_PID=self", "LISTEN_FDS=0"}, path, "no sockets"},
		"other name":      {[]string{"LISTEN_PID=self", "LISTEN_FDS=1", "LISTEN_FDNAMES=global"}, path, "no name of its own"},
		"no name":         {[]string{"LISTEN_PID=self", "LISTEN_FDS=1"}, path, "no name of its own"},
		"twice":           {[]string{"LISTEN_PID=self", "LISTEN_FDS=2", "LISTEN_FDNAMES=local:local"}, path, "no name of its own"},
		"other path":      {[]string{"LISTEN_PID=self", "LISTEN_FDS=1", "LISTEN_FDNAMES=local"}, path + "x", "listens at"},
		"stored ones too": {[]string{"LISTEN_PID=self", "LISTEN_FDS=2", "LISTEN_FDNAMES=local:0123.stdin", wantStored + "=0123.stdin"}, path, ""},
		"stored twice":    {[]string{"LISTEN_PID=self", "LISTEN_FDS=3", "LISTEN_FDNAMES=0123.stdin:local:0123.stdin", wantStored + "=0123.stdin"}, path, ""},
		"only stored":     {[]string{"LISTEN_PID=self", "LISTEN_FDS=1", "LISTEN_FDNAMES=0123.stdin", wantStored + "=0123.stdin"}, path, "no sockets"},
		"not a number":    {[]string{"LISTEN_PID=self", "LISTEN_FDS=many", "LISTEN_FDNAMES=local"}, path, "no sockets"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(c.env, inherit+"="+c.path)
			cmd.ExtraFiles = []*os.File{f, f, f}
			var stderr strings.Builder
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if c.says == "" {
				nc, err := net.Dial("unix", path)
				if err != nil {
					t.Fatal(err)
				}
				nc.Close()
			}
			err := cmd.Wait()
			if (err == nil) != (c.says == "") || !strings.Contains(stderr.String(), c.says) {
				t.Errorf("got %v, %q, want it to say %q", err, stderr.String(), c.says)
			}
		})
	}
}

// One broker at a time; looking changes nothing; the next one may go on.
func TestLock(t *testing.T) {
	path := filepath.Join(needRoot(t), "lock")
	if l, err := TryLock(path, false); l != nil || err != nil {
		t.Fatalf("a lock without a file: %v, %v", l, err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Fatalf("looking made the file: %v", err)
	}
	first, err := TryLock(path, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Sign(); err != nil {
		t.Fatal(err)
	}
	for _, create := range []bool{false, true} {
		_, err := TryLock(path, create)
		if wire.CodeOf(err) != wire.CodeBrokerRunning || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
			t.Errorf("got %v, want %s with our pid", err, wire.CodeBrokerRunning)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := TryLock(path, false)
	if err != nil || second == nil {
		t.Fatalf("got %v, %v", second, err)
	}
	second.Close()
	link := path + "-link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if _, err := TryLock(link, true); wire.CodeOf(err) != wire.CodeInvalidConfig {
		t.Errorf("a link: %v", err)
	}
}
