package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTimeout = 30 * time.Second

func shell(t *testing.T, script string, files ...int) *Process {
	t.Helper()
	exe, err := unix.Open("/bin/sh", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(exe)
	p, err := Start(Command{Executable: exe, Args: []string{"sh", "-c", script}, Files: files})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func timeout(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// The end of a child is told as it was.
func TestExit(t *testing.T) {
	for script, want := range map[string]Exit{
		"exit 0":        {Code: 0},
		"exit 7":        {Code: 7},
		"kill -KILL $$": {Code: -1, Signal: syscall.SIGKILL},
	} {
		p := shell(t, script)
		if err := p.Wait(timeout(t)); err != nil {
			t.Fatal(err)
		}
		if got, ok := p.Exit(); !ok || got != want {
			t.Errorf("%s: %v, %v, want %v", script, got, ok, want)
		}
		if err := p.Signal(unix.SIGTERM); !errors.Is(err, ErrGone) {
			t.Errorf("a signal to a dead process: %v", err)
		}
	}
}

// A process is found by pid and start time, and not by its pid alone.
func TestFind(t *testing.T) {
	p := shell(t, "exec sleep 1000")
	again, err := Find(p.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := Find(ID{PID: p.ID().PID, Start: p.ID().Start + 1}); !errors.Is(err, ErrGone) {
		t.Errorf("another start time: %v", err)
	}
	if err := again.Kill(timeout(t)); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(timeout(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(p.ID()); !errors.Is(err, ErrGone) {
		t.Errorf("a dead process: %v", err)
	}
	if _, ok := again.Exit(); ok {
		// Which of the two reaped it is open; one of them knows.
		return
	}
	if _, ok := p.Exit(); !ok {
		t.Error("nobody knows how the child ended")
	}
}

// Waiting ends with its context, and closing lets the process go on.
func TestWaitAndClose(t *testing.T) {
	p := shell(t, "exec sleep 1000")
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := p.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	held, err := Find(p.ID())
	if err != nil {
		t.Fatalf("close ended the process: %v", err)
	}
	defer held.Close()
	if err := held.Kill(timeout(t)); err != nil {
		t.Fatal(err)
	}
}

// A child gets the files that were named, in their order, with their flags as
// they were, and no other descriptor.
func TestFiles(t *testing.T) {
	if err := SealInherited(); err != nil {
		t.Fatal(err)
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(null)
	before := flags(t, p[1])
	child := shell(t, "ls /proc/self/fd | tr '\\n' ' ' >&3", null, null, null, p[1])
	if err := child.Wait(timeout(t)); err != nil {
		t.Fatal(err)
	}
	if after := flags(t, p[1]); after != before {
		t.Errorf("the flags changed from %#x to %#x", before, after)
	}
	unix.Close(p[1])
	f := os.NewFile(uintptr(p[0]), "pipe")
	defer f.Close()
	b := make([]byte, 256)
	n, err := f.Read(b)
	// ls itself opens one more.
	if got := strings.Fields(string(b[:n])); err != nil || len(got) != 5 || strings.Join(got[:4], " ") != "0 1 2 3" {
		t.Errorf("the child has %q, %v", got, err)
	}
}

func flags(t *testing.T, fd int) int {
	t.Helper()
	f, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Start times are read whatever a process calls itself.
func TestParseStart(t *testing.T) {
	rest := " S" + strings.Repeat(" 1", 18) + " 4711 1 1"
	for _, name := range []string{"sh", "a b", ") S 1 1", "))", ""} {
		got, err := parseStart([]byte(fmt.Sprintf("12 (%s)%s", name, rest)))
		if err != nil || got != 4711 {
			t.Errorf("%q: %d, %v", name, got, err)
		}
	}
	for _, bad := range []string{"", "1 (x) S 1", "1 (x)" + strings.Repeat(" x", 30)} {
		if got, err := parseStart([]byte(bad)); err == nil {
			t.Errorf("%q gave %d", bad, got)
		}
	}
}
