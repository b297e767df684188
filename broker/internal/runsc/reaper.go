package runsc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// Streams are the descriptors of one container. All stay the caller's.
type Streams struct {
	// Stdin, Stdout and Stderr become the container's standard streams.
	Stdin, Stdout, Stderr int
	// Exit is the write end of the pipe that gets the exit status: one line
	// {"id":ID,"exitStatus":N}, N being 128+n after signal n, and nothing when
	// the sandbox itself was killed. Its end of file says that the sandbox is
	// gone.
	Exit int
}

// reaperName is the first argument that makes our binary a reaper.
const reaperName = "paseo-sandbox-reaper"

// Descriptors of a reaper beside its standard streams.
const (
	reaperExit   = 3 // the exit pipe's write end
	reaperRunsc  = 4 // runsc's binary
	reaperReport = 5 // where it says how the create ended
)

// nobody is the user that a reaper becomes once the sandbox is made.
const nobody = 65534

func (r *Runtime) pidFile(id wire.SessionID) string {
	return filepath.Join(r.o.LogDir, string(id)+".pid")
}

// Create makes the container from the bundle. It returns the pid of the
// sandbox and the container's reaper: a process without privileges that is
// the parent of the sandbox, holds the write end of the exit pipe until the
// sandbox ends, and goes on when the broker dies. There is no separate wait:
// "runsc wait" loses the status of a container that is not started yet.
// The error carries what runsc said; then Delete removes what was half made.
func (r *Runtime) Create(ctx context.Context, id wire.SessionID, bundleDir string, s Streams) (sandboxPID int, reaper *process.Process, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return 0, nil, fmt.Errorf("runsc create: %w", err)
	}
	defer read.Close()
	args := append([]string{reaperName, string(id), r.pidFile(id)}, r.flags(id)...)
	args = append(args, "create", "--bundle="+bundleDir, "--pid-file="+r.pidFile(id), string(id))
	reaper, err = process.Start(process.Command{
		Executable: r.self,
		Args:       args,
		Env:        []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		Files:      []int{s.Stdin, s.Stdout, s.Stderr, s.Exit, r.o.Executable, int(write.Fd())},
		// A session of its own: a terminal's Ctrl-C is for the broker alone.
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	write.Close()
	if err != nil {
		return 0, nil, fmt.Errorf("runsc create: %w", err)
	}
	pid, err := r.awaitCreate(ctx, id, read)
	if err != nil {
		kill, cancel := context.WithTimeout(context.Background(), killTimeout)
		defer cancel()
		err = errors.Join(err, reaper.Kill(kill), reaper.Close())
		return 0, nil, err
	}
	return pid, reaper, nil
}

// awaitCreate reads the reaper's report: the sandbox's pid, or words.
func (r *Runtime) awaitCreate(ctx context.Context, id wire.SessionID, report *os.File) (int, error) {
	if deadline, ok := ctx.Deadline(); ok {
		report.SetReadDeadline(deadline)
	}
	stop := context.AfterFunc(ctx, func() { report.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var buf bytes.Buffer
	if _, err := buf.ReadFrom(report); err != nil {
		return 0, late("create", errors.Join(context.Cause(ctx), err))
	}
	pid, err := strconv.Atoi(buf.String())
	if err == nil && pid > 0 {
		return pid, nil
	}
	return 0, &wire.Error{
		Code:    wire.CodeRuntimeFailed,
		Message: fmt.Sprintf("runsc create failed (%s) and said: %s", buf.String(), r.tail(id)),
		Advice:  "run broker-admin doctor",
	}
}

// RunIfReaper never returns in a process that Create started from our own
// binary. Call it first in main, and in TestMain of tests that create
// containers.
func RunIfReaper() {
	if len(os.Args) > 4 && os.Args[0] == reaperName {
		runtime.LockOSThread()
		os.Exit(reap(os.Args[1], os.Args[2], os.Args[3:]))
	}
}

// reap makes the container as root, gives up every privilege, and waits.
func reap(id, pidFile string, create []string) int {
	sandbox, err := createSandbox(pidFile, create)
	if err == nil {
		err = giveUp()
	}
	report := strconv.Itoa(sandbox)
	if err != nil {
		report = err.Error()
	}
	_, _ = unix.Write(reaperReport, []byte(report))
	unix.Close(reaperReport)
	if err != nil {
		return 1
	}
	status, err := await(sandbox)
	if err != nil {
		return 1
	}
	// A sandbox that was killed knows nothing of its agent's end.
	if status.Exited() {
		_, _ = unix.Write(reaperExit, fmt.Appendf(nil, "{\"id\":%q,\"exitStatus\":%d}\n", id, status.ExitStatus()))
	}
	return 0
}

// createSandbox runs runsc create and returns the sandbox's pid. The sandbox
// becomes our child when the command ends (PR_SET_CHILD_SUBREAPER).
func createSandbox(pidFile string, args []string) (int, error) {
	for _, fd := range []int{reaperExit, reaperRunsc, reaperReport} {
		unix.CloseOnExec(fd)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("become the reaper: %w", err)
	}
	pid, err := syscall.ForkExec("/proc/self/fd/"+strconv.Itoa(reaperRunsc), args, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []uintptr{0, 1, 2},
		// A reaper that is killed takes the command along. The kernel means
		// the thread that forked (prctl(2)); ours is locked.
		Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 0, err
	}
	status, err := await(pid)
	if err != nil {
		return 0, err
	}
	if !status.Exited() || status.ExitStatus() != 0 {
		return 0, fmt.Errorf("status %#x", int(status))
	}
	b, err := os.ReadFile(pidFile)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(bytes.TrimSpace(b)))
}

// giveUp lets go of the container's streams, which must reach their end when
// the agent's do, and of every privilege.
func giveUp() error {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for fd := range 3 {
		if err := unix.Dup3(null, fd, 0); err != nil {
			return err
		}
	}
	unix.Close(null)
	unix.Close(reaperRunsc)
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	// These act on all threads; with the user goes every capability.
	if err := syscall.Setgroups(nil); err != nil {
		return err
	}
	if err := syscall.Setgid(nobody); err != nil {
		return err
	}
	return syscall.Setuid(nobody)
}

// await reaps children until this one has ended.
func await(pid int) (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, err
		}
		if got == pid && (status.Exited() || status.Signaled()) {
			return status, nil
		}
	}
}
