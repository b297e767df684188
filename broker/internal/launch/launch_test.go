package launch

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

const testTimeout = 30 * time.Second

// TestMain is the launched program too: it reports what it is over its socket.
func TestMain(m *testing.M) {
	if os.Args[0] == "paseo-sandbox-bridge" {
		os.Exit(report())
	}
	if err := process.SealInherited(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func report() int {
	conn, err := fdpass.Adopt(3)
	if err != nil {
		return 1
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 1
	}
	var b bytes.Buffer
	b.Write(status)
	fmt.Fprintf(&b, "Environ:\t%q\n", os.Environ())
	interfaces, err := net.Interfaces()
	if err != nil {
		return 1
	}
	for _, i := range interfaces {
		fmt.Fprintf(&b, "Interface:\t%s up=%v\n", i.Name, i.Flags&net.FlagUp != 0)
	}
	if err := fdpass.Send(conn, b.Bytes()); err != nil {
		return 1
	}
	// It stays, so that the test can look at it from outside.
	fdpass.Receive(conn, 16)
	return 0
}

// R3: the bridge runs as its own user, without groups, capabilities, new
// privileges, environment or network, with four descriptors and no more.
func TestBridgeIsUnprivileged(t *testing.T) {
	rootonly.Test(t)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	exe, err := unix.Open("/proc/self/exe", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(exe)
	local, remote, err := fdpass.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p, err := Start(Options{Executable: exe, UID: 2000001, GID: 2000002, Socket: remote, Log: int(log.Fd())})
	unix.Close(remote)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	defer p.Kill(ctx)
	deadline, _ := ctx.Deadline()
	local.SetDeadline(deadline)
	payload, _, err := fdpass.Receive(local, 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	got := string(payload)
	for _, want := range []string{
		"Uid:\t2000001\t2000001\t2000001\t2000001\n", "Gid:\t2000002\t2000002\t2000002\t2000002\n",
		"Groups:\t \n", "NoNewPrivs:\t1\n", "Environ:\t[]\n", "Interface:\tlo up=false\n",
		"CapInh:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n",
		"CapBnd:\t0000000000000000\n", "CapAmb:\t0000000000000000\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in what the bridge says of itself:\n%s", want, got)
		}
	}
	if n := strings.Count(got, "Interface:"); n != 1 {
		t.Errorf("%d network interfaces", n)
	}
	if names := inherited(t, p.ID().PID); len(names) != 0 {
		t.Errorf("inherited descriptors: %v", names)
	}
}

// inherited lists descriptors beyond the first four that are not the child's
// own epoll and event descriptors or its duplicate of the socket.
func inherited(t *testing.T, pid int) []string {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil || len(e.Name()) == 1 && e.Name() <= "3" {
			continue
		}
		own := strings.HasPrefix(target, "anon_inode:[event") || strings.HasPrefix(target, "socket:") || strings.HasPrefix(target, "/sys/fs/cgroup/") || strings.HasPrefix(target, "/proc/")
		if !own {
			names = append(names, e.Name()+" "+target)
		}
	}
	sort.Strings(names)
	return names
}

// R3: the restrictions are the bridge's, not ours: no thread that goes on has
// them, the main one included.
func TestTheBrokerKeepsItsOwnRights(t *testing.T) {
	rootonly.Test(t)
	done := make(chan struct{})
	for range 64 {
		go onThrowawayThread(func() {
			if unix.Gettid() == unix.Getpid() {
				t.Error("the main thread would be restricted for good")
			}
			if err := restrictThread(); err != nil {
				t.Error(err)
			}
			done <- struct{}{}
		})
	}
	for range 64 {
		<-done
	}
	// A thread takes a moment to end.
	for deadline := time.Now().Add(testTimeout); ; time.Sleep(time.Millisecond) {
		restricted := 0
		tasks, err := filepath.Glob("/proc/self/task/*/status")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			if b, err := os.ReadFile(task); err == nil && bytes.Contains(b, []byte("NoNewPrivs:\t1")) {
				restricted++
			}
		}
		if restricted == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d threads are still restricted", restricted)
		}
	}
}

// Root is refused before anything starts.
func TestRootIsRefused(t *testing.T) {
	for _, o := range []Options{{UID: 0, GID: 1}, {UID: 1, GID: 0}} {
		if p, err := Start(o); err == nil {
			p.Close()
			t.Errorf("%+v was started", o)
		}
	}
}
