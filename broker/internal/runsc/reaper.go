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

	"git.jb.codes/jb/paseo-sandbox/broker/internal/launch"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/shared/seccomp"
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

// What a reaper does, by its second argument: it makes the sandbox as root,
// and then waits, as another program as far as the kernel is concerned.
const (
	reaperCreates = "create"
	reaperWaits   = "wait"
)

// Descriptors of a reaper beside its standard streams.
const (
	reaperExit   = 3 // the exit pipe's write end
	reaperRunsc  = 4 // runsc's binary
	reaperReport = 5 // where it says how the create ended
)

func (r *Runtime) pidFile(id wire.SessionID) string {
	return filepath.Join(r.o.LogDir, string(id)+".pid")
}

// Create makes the container from the bundle. It returns the pid of the
// sandbox and the container's reaper: a process of the user reaperUID, without
// privileges, that is the parent of the sandbox, holds the write end of the exit pipe until the
// sandbox ends, and goes on when the broker dies. There is no separate wait:
// "runsc wait" loses the status of a container that is not started yet.
// The error carries what runsc said; then Delete removes what was half made.
func (r *Runtime) Create(ctx context.Context, id wire.SessionID, bundleDir string, reaperUID uint32, s Streams) (sandboxPID int, reaper *process.Process, err error) {
	if reaperUID == 0 {
		return 0, nil, errors.New("runsc create: the reaper may not run as root")
	}
	read, write, err := os.Pipe()
	if err != nil {
		return 0, nil, fmt.Errorf("runsc create: %w", err)
	}
	defer read.Close()
	args := append([]string{reaperName, reaperCreates, string(id), r.pidFile(id), strconv.FormatUint(uint64(reaperUID), 10)}, r.flags(id)...)
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
	if len(os.Args) < 6 || os.Args[0] != reaperName {
		return
	}
	runtime.LockOSThread()
	var err error
	switch os.Args[1] {
	case reaperCreates:
		err = create(os.Args[3], os.Args[4], os.Args[5:])
	case reaperWaits:
		err = wait(os.Args[2], os.Args[3])
	}
	if err != nil {
		// Nobody reads it once the create has ended well.
		_, _ = unix.Write(reaperReport, []byte(err.Error()))
		os.Exit(1)
	}
	os.Exit(0)
}

// create makes the container as root, gives up every privilege, and becomes
// the reaper that waits. It returns only if it fails. The words of the command
// stay in the arguments, by which Delete finds a reaper.
func create(pidFile, user string, command []string) error {
	uid, err := strconv.Atoi(user)
	if err != nil {
		return err
	}
	sandbox, err := createSandbox(pidFile, command)
	if err != nil {
		return err
	}
	if err := letGo(); err != nil {
		return err
	}
	// The kernel ends all other threads at exec; children stay children.
	if err := launch.Restrict(uid, uid); err != nil {
		return err
	}
	args := append([]string{reaperName, reaperWaits, os.Args[2], strconv.Itoa(sandbox), user}, command...)
	// The runtime opens files of its cgroup at its start, and keeps them,
	// unless it is told not to look.
	env := []string{"GODEBUG=containermaxprocs=0,updatemaxprocs=0"}
	return fmt.Errorf("execute our own binary, which everybody must be allowed to: %w", unix.Exec("/proc/self/exe", args, env))
}

// wait tells that the create ended well, and then how the sandbox ends.
func wait(id, sandbox string) error {
	for _, fd := range []int{reaperExit, reaperReport} {
		unix.CloseOnExec(fd)
	}
	pid, err := strconv.Atoi(sandbox)
	if err != nil {
		return err
	}
	if err := fence(); err != nil {
		return err
	}
	if _, err := unix.Write(reaperReport, []byte(sandbox)); err != nil {
		return err
	}
	unix.Close(reaperReport)
	status, err := await(pid)
	if err != nil {
		return err
	}
	// A sandbox that was killed knows nothing of its agent's end.
	if status.Exited() {
		_, _ = unix.Write(reaperExit, fmt.Appendf(nil, "{\"id\":%q,\"exitStatus\":%d}\n", id, status.ExitStatus()))
	}
	return nil
}

// fence leaves the reaper what it needs to wait and to write. Landlock holds
// for this thread alone, the system calls are those of all.
func fence() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become undumpable: %w", err)
	}
	if err := launch.Landlock(-1); err != nil {
		return err
	}
	// A C library, where the broker is built with one, makes threads so. It ends
	// the process if a thread can't do what the first one could (rseq).
	rules := seccomp.Rules(seccomp.Allow, unix.SYS_WAIT4, unix.SYS_RSEQ, unix.SYS_SET_ROBUST_LIST)
	rules = append(append(rules, seccomp.Runtime()...), seccomp.Signals(os.Getpid()),
		seccomp.Rule{Number: unix.SYS_MPROTECT, Action: seccomp.Allow, When: []seccomp.Arg{{Index: 2, Mask: unix.PROT_EXEC}}})
	return seccomp.Filter{Rules: rules, Default: seccomp.Fail(unix.EPERM)}.InstallProcess()
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

// letGo lets go of the container's streams, which must reach their end when
// the agent's do, and keeps what the waiting reaper needs open at exec.
func letGo() error {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(null)
	for fd := range 3 {
		if err := unix.Dup3(null, fd, 0); err != nil {
			return err
		}
	}
	for _, fd := range []int{reaperExit, reaperReport} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return err
		}
	}
	return nil
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
