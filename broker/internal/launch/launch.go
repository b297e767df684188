package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"golang.org/x/sys/unix"
)

// Options describe one process. All descriptors stay the caller's.
type Options struct {
	// Args are the program's arguments; the first is its name for itself, and
	// none may be empty. Everybody on the host can read them.
	Args []string
	// Executable is the open, checked, root-owned, static binary, which
	// everybody may execute.
	Executable int
	// UID and GID are what it runs as; neither may be 0.
	UID, GID uint32
	// Files become its descriptors 0, 1, 2 and so on; it has no others.
	Files []int
}

// stubName is the first argument that makes our binary the child that becomes
// the program.
const stubName = "paseo-sandbox-launch"

// startTimeout bounds how long a child takes to become its program, and
// killTimeout how long one that does not takes to die.
const (
	startTimeout = 30 * time.Second
	killTimeout  = 5 * time.Second
)

// Start starts the process and returns once it is the program. It has a user
// of its own, no groups, no capability and no way to one, no environment, an
// empty network namespace, and of the kernel what seccomp and Landlock leave
// (see Restrict and filter). Its binary must call RunIfStub first in main.
func Start(o Options) (*process.Process, error) {
	if o.UID == 0 || o.GID == 0 {
		return nil, fmt.Errorf("start %s: it may not run as root", o.Args[0])
	}
	self, err := unix.Open("/proc/self/exe", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start %s: our own binary: %w", o.Args[0], err)
	}
	defer unix.Close(self)
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Args[0], err)
	}
	defer read.Close()
	p, err := process.Start(process.Command{
		Executable: self,
		Args:       append([]string{stubName, strconv.FormatUint(uint64(o.UID), 10), strconv.FormatUint(uint64(o.GID), 10), strconv.Itoa(len(o.Files))}, o.Args...),
		Files:      append(append([]int{}, o.Files...), o.Executable, int(write.Fd())),
		Sys:        &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWIPC, Setsid: true},
	})
	write.Close()
	if err != nil {
		return nil, err
	}
	if err := became(read); err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("start %s: %w", o.Args[0], err), p.Kill(ctx), p.Close())
	}
	return p, nil
}

// became reads the child's report, which ends without a word when it executes
// the program.
func became(report *os.File) error {
	if err := report.SetReadDeadline(time.Now().Add(startTimeout)); err != nil {
		return err
	}
	var said bytes.Buffer
	if _, err := said.ReadFrom(report); err != nil {
		return err
	}
	if said.Len() > 0 {
		return errors.New(said.String())
	}
	return nil
}
