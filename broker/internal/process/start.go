package process

import (
	"fmt"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Command describes a child that is started by descriptor. All descriptors
// stay the caller's.
type Command struct {
	// Executable is an open binary. What was checked through it is what runs,
	// whatever has become of its path.
	Executable int
	// Args are the arguments, the program's name first.
	Args []string
	// Env is the whole environment.
	Env []string
	// Dir is the working directory, "/" when empty.
	Dir string
	// Files become descriptors 0, 1, 2 and so on of the child; it has no
	// others. Their flags are not touched: os.File and exec.Cmd would make
	// the shared description blocking.
	Files []int
	// Sys may be nil. PidFD is overwritten.
	Sys *syscall.SysProcAttr
}

// Start starts a child. Only the returned Process reaps it.
func Start(c Command) (*Process, error) {
	files := make([]uintptr, len(c.Files))
	highest := 0
	for i, fd := range c.Files {
		files[i] = uintptr(fd)
		highest = max(highest, fd)
	}
	// ForkExec moves descriptors to the numbers just above the highest that it
	// was given; the executable must lie beyond them to be there at exec.
	exe, err := unix.FcntlInt(uintptr(c.Executable), unix.F_DUPFD_CLOEXEC, highest+len(files)+4)
	if err != nil {
		return nil, fmt.Errorf("start %s: hold the executable: %w", c.Args[0], err)
	}
	defer unix.Close(exe)

	sys := &syscall.SysProcAttr{}
	if c.Sys != nil {
		copied := *c.Sys
		sys = &copied
	}
	pidfd := -1
	sys.PidFD = &pidfd
	dir := c.Dir
	if dir == "" {
		dir = "/"
	}
	// The path is looked up by the child, in its own table of descriptors.
	pid, err := syscall.ForkExec("/proc/self/fd/"+strconv.Itoa(exe), c.Args, &syscall.ProcAttr{Dir: dir, Env: c.Env, Files: files, Sys: sys})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Args[0], err)
	}
	return adopt(pid, pidfd)
}

// adopt holds a child of ours, which may be dead already.
func adopt(pid, pidfd int) (*Process, error) {
	// Nobody but the Process reaps it, so its pid is its own until then.
	start, err := startTime(pid)
	if err == nil {
		return watch(ID{PID: pid, Start: start}, pidfd)
	}
	unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
	unix.Close(pidfd)
	return nil, fmt.Errorf("hold child %d: %w", pid, err)
}
