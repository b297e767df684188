package runsc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/bundle"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/cgroup"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/shared/artifact/cache"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	RunIfReaper()
	goleak.VerifyTestMain(m)
}

const testTimeout = 90 * time.Second

// reaperUID is the user of all reapers here; the kernel counts its processes.
const reaperUID = 2_345_678

// sandbox is a container of a test with our ends of its pipes.
type sandbox struct {
	runtime             *Runtime
	id                  wire.SessionID
	root                string
	stdin               *os.File
	stdout, exit        *os.File
	reaper              *process.Process
	workspace, cgroup   string
	groups              *cgroup.Groups
	agentIn, agentOut   int
	agentErr, agentExit int
	bundle              string
}

// cutOffs are when a create is cut off; one takes about 200 ms.
var cutOffs = []time.Duration{time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond, 120 * time.Millisecond, 200 * time.Millisecond}

// newSandbox makes a container that runs a command; it is not started.
func newSandbox(ctx context.Context, t *testing.T, n int, uid uint32, command ...string) *sandbox {
	t.Helper()
	s := prepareSandbox(ctx, t, n, uid, command...)
	if err := s.create(ctx); err != nil {
		t.Fatal(err)
	}
	return s
}

// create makes the container; what it holds of the pipes is its own then.
func (s *sandbox) create(ctx context.Context) (err error) {
	_, s.reaper, err = s.runtime.Create(ctx, s.id, s.bundle, reaperUID, Streams{Stdin: s.agentIn, Stdout: s.agentOut, Stderr: s.agentErr, Exit: s.agentExit})
	return err
}

// closeAgentEnds lets the pipes end with the container.
func (s *sandbox) closeAgentEnds() {
	for _, fd := range []*int{&s.agentIn, &s.agentOut, &s.agentErr, &s.agentExit} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// prepareSandbox makes all that a create needs.
func prepareSandbox(ctx context.Context, t *testing.T, n int, uid uint32, command ...string) *sandbox {
	t.Helper()
	rootonly.Test(t)
	index, err := cache.Locate(cache.Dir())
	if err != nil {
		t.Fatal(err)
	}
	exe, err := unix.Open(index.Runsc.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := &sandbox{id: wire.SessionID(fmt.Sprintf("%032x", n)), root: filepath.Join(dir, "root"), workspace: filepath.Join(dir, "workspace")}
	if s.groups, err = cgroup.Open(fmt.Sprintf("/paseo-sandbox-test-%d", os.Getpid())); err != nil {
		t.Fatal(err)
	}
	s.cgroup = s.groups.Path(s.id)
	logs, home, bundleDir := filepath.Join(dir, "log"), filepath.Join(dir, "home"), filepath.Join(dir, "bundle")
	for _, d := range []string{s.root, logs, s.workspace, home, bundleDir} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{s.workspace, home} {
		if err := os.Chown(d, int(uid), int(uid)); err != nil {
			t.Fatal(err)
		}
	}
	if s.runtime, err = Open(Options{Executable: exe, Root: s.root, LogDir: logs, Cgroups: true, ReaperUID: func(uid uint32) bool { return uid == reaperUID }}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cleanup, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if err := errors.Join(s.runtime.Delete(cleanup, s.id), s.groups.Remove(cleanup, s.cgroup), s.groups.RemoveEmpty(s.groups.Parent()), s.runtime.Tidy(), s.runtime.Close()); err != nil {
			t.Error(err)
		}
		if s.reaper != nil {
			s.reaper.Close()
		}
		unix.Close(exe)
	})
	spec := bundle.Build(bundle.Session{
		ID: s.id, Rootfs: index.Rootfs.Path, Command: command, Env: bundle.PiEnv(), UID: uid, GID: uid,
		Workspace: s.workspace, StateDir: home, CgroupPath: s.cgroup, Hostname: "sandbox",
		Limits: bundle.Limits{MemoryBytes: 256 << 20, CPUs: 1, PIDs: 200, OpenFiles: 256, TmpBytes: 8 << 20},
	})
	if err := bundle.Write(bundleDir, spec); err != nil {
		t.Fatal(err)
	}
	s.pipes(t)
	s.bundle = bundleDir
	return s
}

// pipes makes the container's pipes: our ends non-blocking, its ends not.
func (s *sandbox) pipes(t *testing.T) {
	t.Helper()
	pipe := func(ours, theirs int) (*os.File, int) {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		if err := unix.SetNonblock(p[ours], true); err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(p[ours]), "pipe")
		t.Cleanup(func() { f.Close() })
		return f, p[theirs]
	}
	s.stdin, s.agentIn = pipe(1, 0)
	s.stdout, s.agentOut = pipe(0, 1)
	_, s.agentErr = pipe(0, 1)
	s.exit, s.agentExit = pipe(0, 1)
	t.Cleanup(s.closeAgentEnds)
}

// end reads output and exit status to their ends.
func (s *sandbox) end(ctx context.Context, t *testing.T) (out, status string) {
	t.Helper()
	s.closeAgentEnds()
	deadline, _ := ctx.Deadline()
	s.stdout.SetReadDeadline(deadline)
	s.exit.SetReadDeadline(deadline)
	b, err := io.ReadAll(s.stdout)
	if err != nil {
		t.Fatal(err)
	}
	e, err := io.ReadAll(s.exit)
	if err != nil {
		t.Fatal(err)
	}
	return string(b), string(e)
}

// R2 R15 R17 R31 R36: a container runs as the workspace's user, its output and
// its exit status arrive, and nothing is left of it.
func TestContainerRunsAndLeavesNothing(t *testing.T) {
	for n, c := range map[int]struct {
		uid     uint32
		command string
		out     string
		status  int
	}{
		1: {1000, "id -u; echo made > /workspace/file; exit 7", "1000\n", 7},
		2: {1234, "true", "", 0},
		3: {100000, "echo made > /workspace/file; kill -KILL $$", "", 137},
		4: {1000, "touch /root-is-read-only 2>/dev/null || echo refused", "refused\n", 0},
		5: {1000, "grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs)' /proc/self/status | sort -u | tr -s '\\t0' ' 0' | tr '\\n' ';'", "CapAmb: 0;CapBnd: 0;CapEff: 0;CapInh: 0;CapPrm: 0;NoNewPrivs: 1;", 0},
	} {
		t.Run(c.command, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			s := newSandbox(ctx, t, n, c.uid, "/bin/sh", "-c", c.command)
			if err := s.runtime.Start(ctx, s.id); err != nil {
				t.Fatal(err)
			}
			out, status := s.end(ctx, t)
			want := fmt.Sprintf("{\"id\":%q,\"exitStatus\":%d}\n", s.id, c.status)
			if out != c.out || status != want {
				t.Errorf("out %q, want %q; status %q, want %q", out, c.out, status, want)
			}
			if strings.Contains(c.command, "made") {
				owned(t, filepath.Join(s.workspace, "file"), c.uid)
			}
			s.remove(ctx, t)
		})
	}
}

func owned(t *testing.T, file string, uid uint32) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil || st.Uid != uid || st.Gid != uid {
		t.Errorf("%s belongs to %d:%d (%v), want %d", file, st.Uid, st.Gid, err, uid)
	}
}

// remove deletes the container twice and looks for what is left.
func (s *sandbox) remove(ctx context.Context, t *testing.T) {
	t.Helper()
	for range 2 {
		if err := s.runtime.Delete(ctx, s.id); err != nil {
			t.Fatal(err)
		}
	}
	if s.reaper != nil {
		if err := s.reaper.Wait(ctx); err != nil {
			t.Error(err)
		}
	}
	if err := s.groups.Remove(ctx, s.cgroup); err != nil {
		t.Error(err)
	}
	if ids, err := s.runtime.List(ctx); err != nil || len(ids) != 0 {
		t.Errorf("still listed: %v, %v", ids, err)
	}
	if _, err := s.runtime.State(ctx, s.id); !errors.Is(err, ErrNotFound) {
		t.Errorf("state of a deleted container: %v", err)
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*/paseo-sandbox-test/" + string(s.id)); len(left) != 0 {
		t.Errorf("cgroups left: %v", left)
	}
	if left, err := s.runtime.processes(s.id); err != nil || len(left) != 0 {
		t.Errorf("processes left: %v, %v", left, err)
	}
}

// R32: delete converges from every state, and needs no order.
func TestDeleteFromEveryState(t *testing.T) {
	for n, state := range []string{"never made", "created", "running", "sandbox killed"} {
		t.Run(state, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			s := newSandbox(ctx, t, 16+n, 1000, "/bin/sleep", "1000")
			switch state {
			case "never made":
				if err := s.runtime.Delete(ctx, "ffffffffffffffffffffffffffffffff"); err != nil {
					t.Error(err)
				}
			case "running", "sandbox killed":
				if err := s.runtime.Start(ctx, s.id); err != nil {
					t.Fatal(err)
				}
			}
			if state == "sandbox killed" {
				st, err := s.runtime.State(ctx, s.id)
				if err != nil || st.PID == 0 {
					t.Fatalf("%+v, %v", st, err)
				}
				if err := unix.Kill(st.PID, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
				if _, status := s.end(ctx, t); status != "" {
					t.Errorf("a killed sandbox gave the status %q", status)
				}
			}
			s.remove(ctx, t)
		})
	}
}

// R3: the reaper has a user of its own, no privileges and no way to one, and holds nothing of the container's streams.
func TestReaperIsHarmless(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	s := newSandbox(ctx, t, 48, 1000, "/bin/cat")
	dir := fmt.Sprintf("/proc/%d", s.reaper.ID().PID)
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		t.Fatal(err)
	}
	own := strings.Repeat("\t"+strconv.Itoa(reaperUID), 4)
	for _, line := range []string{
		"Uid:" + own, "Gid:" + own, "Groups:\t ", "NoNewPrivs:\t1", "Seccomp:\t2",
		"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000",
	} {
		if !bytes.Contains(status, []byte(line+"\n")) {
			t.Errorf("the reaper's status has no %q:\n%s", line, status)
		}
	}
	// What is not dumpable belongs to root there (proc(5)).
	var st unix.Stat_t
	if err := unix.Stat(dir+"/mem", &st); err != nil || st.Uid != 0 {
		t.Errorf("the reaper's memory belongs to %d, %v", st.Uid, err)
	}
	for fd := range 3 {
		if target, err := os.Readlink(fmt.Sprintf("%s/fd/%d", dir, fd)); err != nil || target != "/dev/null" {
			t.Errorf("descriptor %d is %s, %v", fd, target, err)
		}
	}
	if err := s.runtime.Start(ctx, s.id); err != nil {
		t.Fatal(err)
	}
	if _, err := s.stdin.WriteString("through the sandbox\n"); err != nil {
		t.Fatal(err)
	}
	s.stdin.Close()
	if out, _ := s.end(ctx, t); out != "through the sandbox\n" {
		t.Errorf("got %q", out)
	}
	s.remove(ctx, t)
}

// A failed create says what runsc said and leaves no process.
func TestCreateFails(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	s := newSandbox(ctx, t, 64, 1000, "/bin/true")
	_, _, err := s.runtime.Create(ctx, "0000000000000000000000000000beef", filepath.Join(t.TempDir(), "none"), reaperUID, Streams{Stdin: s.runtime.null, Stdout: s.runtime.null, Stderr: s.runtime.null, Exit: s.runtime.null})
	if wire.CodeOf(err) != wire.CodeRuntimeFailed || !strings.Contains(err.Error(), "config.json") {
		t.Errorf("got %v", err)
	}
	if left, err := s.runtime.processes("0000000000000000000000000000beef"); err != nil || len(left) != 0 {
		t.Errorf("processes left: %v, %v", left, err)
	}
}
