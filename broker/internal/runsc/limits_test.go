package runsc

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// limitFiles are where a limit of newSandbox is read back, v1 or v2.
var limitFiles = map[string][2]string{
	"memory/memory.limit_in_bytes": {"memory.max", strconv.Itoa(256 << 20)},
	"pids/pids.max":                {"pids.max", "200"},
	"cpu/cpu.cfs_quota_us":         {"cpu.max", "100000"},
}

// R34: memory, process and CPU limits of the bundle are the kernel's.
func TestLimitsAreApplied(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	s := newSandbox(ctx, t, 80, 1000, "/bin/cat")
	for v1, other := range limitFiles {
		controller, file := filepath.Split(v1)
		b, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", controller, s.cgroup, file))
		if errors.Is(err, os.ErrNotExist) {
			b, err = os.ReadFile(filepath.Join("/sys/fs/cgroup", s.cgroup, other[0]))
		}
		if err != nil || !strings.HasPrefix(string(b), other[1]) {
			t.Errorf("%s: %q, %v, want %s", v1, b, err, other[1])
		}
	}
	s.remove(ctx, t)
}

// R31 R34: when memory runs out the sandbox dies without a status, and the
// cgroup tells why until it is removed.
func TestOutOfMemory(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	s := newSandbox(ctx, t, 81, 1000, "/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=400M", "count=1")
	if err := s.runtime.Start(ctx, s.id); err != nil {
		t.Fatal(err)
	}
	if _, status := s.end(ctx, t); status != "" {
		t.Errorf("the killed sandbox gave the status %q", status)
	}
	if killed, err := s.groups.OOMKilled(s.cgroup); err != nil || !killed {
		t.Errorf("out of memory: %v, %v", killed, err)
	}
	s.remove(ctx, t)
}

// Nothing that runsc does changes the flags of our ends of the pipes. Its own
// ends of the standard streams it makes non-blocking at start; they are
// descriptions of their own, which nobody else uses.
func TestStreamFlagsAreKept(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	s := newSandbox(ctx, t, 82, 1000, "/bin/cat")
	ends := map[string]*os.File{"stdin": s.stdin, "stdout": s.stdout, "exit": s.exit}
	check := func(after string) {
		for name, f := range ends {
			raw, err := f.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			raw.Control(func(fd uintptr) {
				if flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
					t.Errorf("after %s our end of %s blocks: %#x, %v", after, name, flags, err)
				}
			})
		}
		flags, err := unix.FcntlInt(uintptr(s.agentExit), unix.F_GETFL, 0)
		if err != nil || flags&unix.O_NONBLOCK != 0 {
			t.Errorf("after %s the reaper's end of exit has %#x, %v", after, flags, err)
		}
	}
	check("create")
	if err := s.runtime.Start(ctx, s.id); err != nil {
		t.Fatal(err)
	}
	check("start")
	if err := s.runtime.Signal(ctx, s.id, "KILL"); err != nil {
		t.Fatal(err)
	}
	s.closeAgentEnds()
	if _, status := s.end(ctx, t); !strings.Contains(status, `"exitStatus":137`) {
		t.Errorf("status %q", status)
	}
	s.remove(ctx, t)
}
