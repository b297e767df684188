package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrGone is returned for a process that is dead, or whose pid now belongs to
// another one.
var ErrGone = errors.New("the process is gone")

// ID names one process of this boot.
type ID struct {
	PID int
	// Start is when the process began, in clock ticks since boot
	// (proc_pid_stat(5), field 22).
	Start uint64
}

// Process is a process held by a pidfd, which is close-on-exec. It is safe for
// concurrent use. Close it.
type Process struct {
	id    ID
	pidfd *os.File
	raw   syscall.RawConn
	done  chan struct{} // closed when the process is dead
	ended chan struct{} // closed when the watcher has ended
	close sync.Once

	// exit is written by the watcher before done is closed.
	exit *Exit
}

// Exit is how a child of ours ended.
type Exit struct {
	// Code is the exit code, or -1 when a signal ended the process.
	Code int
	// Signal is the signal that ended the process, or 0.
	Signal syscall.Signal
}

// String says it in words.
func (e Exit) String() string {
	if e.Signal != 0 {
		return "killed by " + unix.SignalName(e.Signal)
	}
	return "exit status " + strconv.Itoa(e.Code)
}

// Open holds the process that has this pid now. It returns ErrGone when there
// is none, and for one that is dead and only waits to be reaped.
func Open(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, openError(pid, err)
	}
	start, err := startTime(pid)
	if err == nil && dead(fd) {
		err = ErrGone
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return watch(ID{PID: pid, Start: start}, fd)
}

// Find holds the process with this id. It returns ErrGone when it is dead,
// also if another process has got its pid.
func Find(id ID) (*Process, error) {
	p, err := Open(id.PID)
	if err != nil {
		return nil, err
	}
	if p.id != id {
		p.Close()
		return nil, fmt.Errorf("find process %d that began at %d: %w", id.PID, id.Start, ErrGone)
	}
	return p, nil
}

// ID names the process.
func (p *Process) ID() ID { return p.id }

// Signal sends a signal to the process and to no other (pidfd_send_signal(2)).
// It returns ErrGone when the process is dead.
func (p *Process) Signal(sig unix.Signal) error {
	if p.Dead() {
		return ErrGone
	}
	var sendErr error
	if err := p.raw.Control(func(fd uintptr) {
		sendErr = unix.PidfdSendSignal(int(fd), sig, nil, 0)
	}); err != nil {
		return fmt.Errorf("signal process %d: %w", p.id.PID, err)
	}
	if errors.Is(sendErr, unix.ESRCH) {
		return ErrGone
	}
	if sendErr != nil {
		return fmt.Errorf("signal process %d: %w", p.id.PID, sendErr)
	}
	return nil
}

// Done returns a channel that is closed when the process is dead: all of its
// threads have ended and its descriptors are closed. A child of ours has been
// reaped by then. After Close it may never be closed.
func (p *Process) Done() <-chan struct{} { return p.done }

// Dead reports whether Done is closed.
func (p *Process) Dead() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Exit returns how the process ended; ok is false while it lives, and for one
// that is no child of ours.
func (p *Process) Exit() (exit Exit, ok bool) {
	if !p.Dead() || p.exit == nil {
		return Exit{}, false
	}
	return *p.exit, true
}

// Wait waits until the process is dead or the context ends, whose error it
// returns then.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-p.ended:
		if p.Dead() {
			return nil
		}
		return fmt.Errorf("wait for process %d: %w", p.id.PID, os.ErrClosed)
	case <-ctx.Done():
		return fmt.Errorf("wait for process %d: %w", p.id.PID, context.Cause(ctx))
	}
}

// Kill sends SIGKILL and waits until the process is dead or the context ends.
// A process that is dead already is no error.
func (p *Process) Kill(ctx context.Context) error {
	if err := p.Signal(unix.SIGKILL); err != nil && !errors.Is(err, ErrGone) {
		return err
	}
	return p.Wait(ctx)
}

// Close lets go of the process and waits for the watcher's end. The process
// itself goes on; a child of ours that ends later stays a zombie until we end.
func (p *Process) Close() error {
	var err error
	p.close.Do(func() {
		err = p.pidfd.Close()
		<-p.ended
	})
	return err
}

// watch takes ownership of the pidfd, also when it fails.
func watch(id ID, fd int) (*Process, error) {
	// The runtime's poller takes non-blocking descriptors only; an own flag
	// for it (PIDFD_NONBLOCK) is newer than pidfds are.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch process %d: %w", id.PID, err)
	}
	p := &Process{
		id:    id,
		pidfd: os.NewFile(uintptr(fd), "pidfd"),
		done:  make(chan struct{}),
		ended: make(chan struct{}),
	}
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		p.pidfd.Close()
		return nil, fmt.Errorf("watch process %d: %w", id.PID, err)
	}
	p.raw = raw
	go p.watch()
	return p, nil
}

// watch ends when the process is dead or the pidfd is closed.
func (p *Process) watch() {
	defer close(p.ended)
	err := p.raw.Read(func(fd uintptr) bool {
		if !dead(int(fd)) {
			return false
		}
		p.exit = reap(int(fd))
		return true
	})
	if err == nil {
		close(p.done)
	}
}

// dead reports whether the pidfd is readable.
func dead(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if err != unix.EINTR {
			return err == nil && n == 1
		}
	}
}

// childInfo is the part of siginfo_t that waitid(2) fills in, on 64-bit
// machines, and the rest of its 128 bytes.
type childInfo struct {
	signo, errno, code, _ int32
	pid                   int32
	uid                   uint32
	status                int32
	_                     [100]byte
}

// reap collects a dead child, and only that one, whatever has become of its
// pid. It returns nil for a process that is no child of ours (ECHILD).
func reap(fd int) *Exit {
	var info childInfo
	for {
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_PIDFD, uintptr(fd), uintptr(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOHANG, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 || info.pid == 0 {
			return nil
		}
		const exited = 1 // CLD_EXITED (sigaction(2))
		if info.code == exited {
			return &Exit{Code: int(info.status)}
		}
		return &Exit{Code: -1, Signal: syscall.Signal(info.status)}
	}
}

// startTime reads field 22 of /proc/PID/stat. Field 2, the name, stands in
// parentheses and may hold anything, further parentheses too.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return 0, ErrGone
	}
	if err != nil {
		return 0, err
	}
	return parseStart(b)
}

func parseStart(stat []byte) (uint64, error) {
	const start = 22 - 3 // the fields after the name begin with field 3
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= start {
		return 0, fmt.Errorf("process status %.80q has no start time", stat)
	}
	return strconv.ParseUint(string(fields[start]), 10, 64)
}

func openError(pid int, err error) error {
	// EINVAL: the number is that of a thread which leads no process.
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		err = ErrGone
	}
	return fmt.Errorf("open process %d: %w", pid, err)
}
