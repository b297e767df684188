package sdnotify

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/sdnotify/playsystemd"
	"golang.org/x/sys/unix"
)

// open is Open with an environment.
func open(t *testing.T, env map[string]string, stored ...string) *Systemd {
	t.Helper()
	for _, name := range []string{"NOTIFY_SOCKET", "FDSTORE", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		t.Setenv(name, env[name])
	}
	s, err := Open(stored)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for name := range env {
		if v, ok := os.LookupEnv(name); ok {
			t.Errorf("the environment still has %s=%s", name, v)
		}
	}
	return s
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// Without systemd everything succeeds.
func TestNobody(t *testing.T) {
	s := open(t, map[string]string{"FDSTORE": "100", "WATCHDOG_USEC": "1000000"})
	if s != nil {
		t.Fatalf("got %+v", s)
	}
	if err := errors.Join(s.Ready(), s.Reloading(), s.Stopping(), s.Alive("x"), s.Keep([]string{"a"}, []int{0}), s.Drop("a"), s.Barrier()); err != nil || s.Size() != 0 || s.Interval() <= 0 {
		t.Errorf("got %v, %d, %v", err, s.Size(), s.Interval())
	}
}

// A socket that nobody listens at is an error.
func TestNobodyListens(t *testing.T) {
	s := open(t, map[string]string{"NOTIFY_SOCKET": filepath.Join(t.TempDir(), "none")})
	if err := s.Ready(); !errors.Is(err, unix.ENOENT) {
		t.Errorf("got %v", err)
	}
}

func TestMessages(t *testing.T) {
	systemd := playsystemd.Listen(t)
	s := open(t, map[string]string{"NOTIFY_SOCKET": systemd.Address, "FDSTORE": "1", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": fmt.Sprint(os.Getpid())})
	if got := s.Interval(); got != time.Second {
		t.Errorf("a watchdog of 3 s is fed every %v", got)
	}
	if err := errors.Join(s.Ready(), s.Alive("one"), s.Alive("one"), s.Alive("two"), s.Reloading(), s.Stopping(), s.Barrier()); err != nil {
		t.Fatal(err)
	}
	got := systemd.Messages()
	want := []string{"READY=1", "WATCHDOG=1\nSTATUS=one", "WATCHDOG=1", "WATCHDOG=1\nSTATUS=two", "RELOADING=1\nMONOTONIC_USEC=", "STOPPING=1"}
	for i := range want {
		if len(got) != len(want) || !strings.HasPrefix(got[i], want[i]) {
			t.Fatalf("got %q", got)
		}
	}
}

// A watchdog that waits for another process is none of ours.
func TestForeignWatchdog(t *testing.T) {
	systemd := playsystemd.Listen(t)
	for _, env := range []map[string]string{
		{"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "-1"},
	} {
		env["NOTIFY_SOCKET"] = systemd.Address
		s := open(t, env)
		if err := errors.Join(s.Alive("one"), s.Alive("one")); err != nil {
			t.Fatal(err)
		}
		if got := s.Interval(); got != statusInterval {
			t.Errorf("%v: every %v", env, got)
		}
	}
	eventually(t, "the statuses", func() bool { return len(systemd.Messages()) == 4 })
	for _, m := range systemd.Messages() {
		if m != "STATUS=one" {
			t.Errorf("got %q", m)
		}
	}
}

// R33: what is kept is the same description; it is kept once, counted, and
// dropped by name.
func TestStore(t *testing.T) {
	systemd := playsystemd.Listen(t)
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	s := open(t, map[string]string{"NOTIFY_SOCKET": systemd.Address, "FDSTORE": "3"}, "old.stdin")
	systemd.Put("old.stdin", mustDup(t, ends[0]))
	if err := s.Keep([]string{"a.stdin", "a.stdout", "a.exit"}, []int{ends[0], ends[0], ends[0]}); !errors.Is(err, ErrFull) {
		t.Errorf("four in a store for three: %v", err)
	}
	if err := errors.Join(s.Keep([]string{"a.stdin", "a.stdout"}, []int{ends[1], ends[0]}), s.Barrier()); err != nil {
		t.Fatal(err)
	}
	if got := systemd.Names(); !slices.Equal(got, []string{"a.stdin", "a.stdout", "old.stdin"}) {
		t.Fatalf("it keeps %v", got)
	}
	if err := errors.Join(s.Drop("old.stdin", "a.stdout", "never"), s.Barrier()); err != nil {
		t.Fatal(err)
	}
	if got := systemd.Names(); !slices.Equal(got, []string{"a.stdin"}) {
		t.Fatalf("it keeps %v", got)
	}
	// Its write end alone keeps the pipe from ending.
	unix.Close(ends[1])
	if n, err := unix.Read(ends[0], make([]byte, 1)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("read: %d, %v", n, err)
	}
	if err := errors.Join(s.Drop("a.stdin"), s.Barrier()); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Read(ends[0], make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("read: %d, %v", n, err)
	}
	unix.Close(ends[0])
	if err := s.Keep([]string{"x"}, []int{-1}); err == nil {
		t.Error("nothing is kept without an error")
	}
}

func mustDup(t *testing.T, fd int) int {
	t.Helper()
	d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A unit without a store gets no descriptors, and no barrier waits for it.
func TestNoStore(t *testing.T) {
	systemd := playsystemd.Listen(t)
	systemd.Deafen(true)
	s := open(t, map[string]string{"NOTIFY_SOCKET": systemd.Address})
	if err := errors.Join(s.Keep([]string{"a"}, []int{0}), s.Drop("a"), s.Barrier(), s.Ready()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is told", func() bool { return len(systemd.Messages()) > 0 })
	if got := systemd.Names(); len(got) > 0 {
		t.Errorf("it keeps %v", got)
	}
}
