package setup

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// Command is a program that a stage runs.
type Command struct {
	Args []string
	Dir  string
	Env  []string // added to this process's own environment
	Log  string   // file that gets its output

	// Gentle is for a package manager: it is asked to stop (SIGINT) and waited
	// for, because killing it half-way would break the host's packages.
	Gentle bool
}

// Run runs the command to its end. When ctx ends, or this process dies, it is
// killed together with all that it started: it is the first process of a PID
// namespace of its own. Its mounts live in a mount namespace of its own and go
// with it. Both need root, and neither is so for a gentle command.
func (c *Command) Run(ctx context.Context) error {
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return Errorf(CodeCache, err, "Look at the cause.", "the log %q can't be written", c.Log)
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.Dir, log, log
	cmd.Env = append(os.Environ(), c.Env...)
	// A terminal's Ctrl-C comes to this process alone, which then ends the child.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if c.Gentle {
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	} else {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	// The death signal is tied to the thread that forks: it has to outlive the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return Errorf(CodeStageFailed, err, "Read the end of "+c.Log+".", "%q failed; its last lines were:\n%s\n", strings.Join(c.Args[:min(2, len(c.Args))], " "), tail(c.Log, 12))
	}
	return nil
}

// tail returns the last lines of a file, or nothing.
func tail(name string, lines int) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	buf := make([]byte, 8<<10)
	if st, err := f.Stat(); err == nil && st.Size() > int64(len(buf)) {
		if _, err := f.Seek(-int64(len(buf)), 2); err != nil {
			return ""
		}
	}
	n, _ := f.Read(buf)
	all := bytes.Split(bytes.TrimSpace(buf[:n]), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}

// removeTree removes a directory, unless something is mounted beneath it.
func removeTree(name string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line) // proc_pid_mountinfo(5): the fifth is the mount point
		if len(f) < 5 {
			continue
		}
		point := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(f[4])
		if strings.HasPrefix(point+"/", filepath.Clean(name)+"/") {
			return errors.New(point + " is mounted: unmount it first")
		}
	}
	return os.RemoveAll(name)
}
