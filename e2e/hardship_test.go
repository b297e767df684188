package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// R18: a descriptor that a careless parent left open in the broker reaches
// nobody that the broker starts.
func TestInheritedDescriptorsGoNoFurther(t *testing.T) {
	rootonly.Test(t)
	ctx, cancel := context.WithTimeout(t.Context(), deathsTimeout)
	defer cancel()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(secret, unix.O_RDONLY, 0) // not close-on-exec
	if err != nil {
		t.Fatal(err)
	}
	s := startSmallSystem(t, harness.Options{Profiles: echoProfiles})
	unix.CloseOnExec(fd)
	defer unix.Close(fd)
	b, _, info := startSession(ctx, t, s, client.CreateOptions{Profile: "stdout"})
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{strconv.Itoa(s.BrokerPID()): true, strconv.Itoa(os.Getpid()): true}
	inBroker := false
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || target != secret {
			continue
		}
		pid := strings.Split(link, "/")[2]
		inBroker = inBroker || pid == strconv.Itoa(s.BrokerPID())
		if !known[pid] {
			command, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			t.Errorf("process %s, %.60q, has the descriptor", pid, command)
		}
	}
	if !inBroker {
		t.Error("the broker did not inherit the descriptor: the test tests nothing")
	}
	if err := b.Delete(ctx, info.Session); err != nil {
		t.Error(err)
	}
}

// R32: a session can be ended and deleted while the broker can't write a
// record, for that is what makes room.
func TestSessionsEndOnAFullDisk(t *testing.T) {
	rootonly.Test(t)
	ctx, cancel := context.WithTimeout(t.Context(), deathsTimeout)
	defer cancel()
	s := startSmallSystem(t, harness.Options{Profiles: echoProfiles})
	if err := s.StopBroker(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(s.Prefix, "var")
	if err := unix.Mount("tmpfs", state, "tmpfs", 0, "size=32m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(s.StopBroker(syscall.SIGTERM), unix.Unmount(state, 0)); err != nil {
			t.Error(err)
		}
	}()
	if err := s.StartBroker(ctx); err != nil {
		t.Fatal(err)
	}
	b, _, info := startSession(ctx, t, s, client.CreateOptions{Profile: "stdout"})
	fill(t, filepath.Join(state, "ballast"))
	if now, err := b.Terminate(ctx, info.Session, 0); err != nil || now.State != wire.StateExited {
		t.Errorf("terminate: %+v, %v", now, err)
	}
	if err := b.Delete(ctx, info.Session); err != nil {
		t.Errorf("delete: %v", err)
	}
	if all, err := b.List(ctx); err != nil || len(all) != 0 {
		t.Errorf("left: %+v, %v", all, err)
	}
}

// fill writes until the file system is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, os.Getpagesize())
	for err == nil {
		_, err = f.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

// R33: a broker that is stopped while a bridge is being replaced finishes
// that: else both holders of the session's pipes would go at once.
func TestStoppedBrokerFinishesTheReplacement(t *testing.T) {
	rootonly.Test(t)
	ctx, cancel := context.WithTimeout(t.Context(), deathsTimeout)
	defer cancel()
	s := startSmallSystem(t, harness.Options{Profiles: echoProfiles})
	for _, pause := range []time.Duration{10 * time.Millisecond, 50 * time.Millisecond} {
		b, _, info := startSession(ctx, t, s, client.CreateOptions{Profile: "stdout"})
		if err := syscall.Kill(int(info.BridgePID), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pause)
		if err := s.StopBroker(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		b.Close()
		if err := s.StartBroker(ctx); err != nil {
			t.Fatal(err)
		}
		b, err := client.DialBroker(ctx, s.BrokerSocket())
		if err != nil {
			t.Fatal(err)
		}
		now, err := b.Inspect(ctx, info.Session)
		if err != nil || now.State != wire.StateRunning || now.SandboxPID != info.SandboxPID || now.BridgePID == info.BridgePID {
			t.Errorf("stopped after %v: %+v, %v", pause, now, err)
		}
		if err := b.Delete(ctx, info.Session); err != nil {
			t.Error(err)
		}
		b.Close()
	}
}

// R47: a broker that reads nothing, no log line of its bridges either, keeps
// none from serving.
func TestStoppedBrokerDoesNotBlockItsBridge(t *testing.T) {
	rootonly.Test(t)
	ctx, cancel := context.WithTimeout(t.Context(), deathsTimeout)
	defer cancel()
	s := startSmallSystem(t, harness.Options{Profiles: echoProfiles})
	b, _, info := startSession(ctx, t, s, client.CreateOptions{Profile: "stdout"})
	if err := syscall.Kill(s.BrokerPID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(s.BrokerPID(), syscall.SIGCONT)
	// Each connection makes a line of the log; a pipe holds some hundred.
	for i := range 1000 {
		once, cancel := context.WithTimeout(ctx, exchangeTimeout)
		session, err := client.DialSession(once, b.SessionSocket(info))
		cancel()
		if err != nil {
			t.Fatalf("connection %d: %v", i+1, err)
		}
		session.Close()
	}
}
