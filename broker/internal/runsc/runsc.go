package runsc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// ErrNotFound is returned for a container that runsc does not know.
var ErrNotFound = errors.New("runsc knows no such container")

// Options say which runsc to use and where it keeps its state.
type Options struct {
	// Executable is the open binary, checked before. It stays the caller's
	// and must stay open until Close.
	Executable int
	// Root is runsc's --root, a root-owned folder of mode 0700 on tmpfs.
	Root string
	// LogDir gets one log file for each container, ID.log.
	LogDir string
	// ReaperUID reports whether a user is one that reapers run as.
	ReaperUID func(uid uint32) bool
	// Cgroups says whether runsc makes the cgroups that the bundles name.
	Cgroups bool
}

// Runtime runs runsc. It is safe for concurrent use.
type Runtime struct {
	o    Options
	self int // our own binary, which is the reapers' too
	null int
}

// Open checks the folders.
func Open(o Options) (*Runtime, error) {
	for _, dir := range []string{o.Root, o.LogDir} {
		var st unix.Stat_t
		if err := unix.Lstat(dir, &st); err != nil {
			return nil, fmt.Errorf("open runsc: %s: %w", dir, err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != 0 || st.Mode&0o022 != 0 {
			return nil, fmt.Errorf("open runsc: %s must be a folder that root alone can write", dir)
		}
	}
	self, err := unix.Open("/proc/self/exe", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open runsc: our own binary: %w", err)
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		unix.Close(self)
		return nil, fmt.Errorf("open runsc: %w", err)
	}
	return &Runtime{o: o, self: self, null: null}, nil
}

// Close lets go of the runtime. Containers go on.
func (r *Runtime) Close() error {
	return errors.Join(unix.Close(r.self), unix.Close(r.null))
}

// Tidy removes what runsc leaves below its root once no container is left. No
// other method may run at the same time.
func (r *Runtime) Tidy() error {
	left, err := containerFiles(r.o.Root)
	if err != nil || len(left) > 0 {
		return err
	}
	// runsc pins an empty network namespace there for its containers: once, and
	// once more on top for each that was made at the same moment.
	name := filepath.Join(r.o.Root, "null-netns")
	for err == nil {
		err = unix.Unmount(name, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("tidy runsc: unmount %s: %w", name, err)
	}
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("tidy runsc: %w", err)
	}
	return nil
}

// flags are what every command gets. Host sockets, FIFOs and devices stay
// closed, files are opened by the gofer and not by the sandbox, nothing is
// written back to the root file system, there is no network, and the bundle's
// seccomp filter counts, which runsc ignores by default. The other defaults are
// closed; a test keeps a list of them for the day that runsc is replaced.
func (r *Runtime) flags(id wire.SessionID) []string {
	f := []string{
		"runsc", "--root=" + r.o.Root, "--log=" + r.logFile(id), "--log-format=text",
		"--platform=systrap", "--network=none", "--net-raw=false", "--directfs=false", "--overlay2=none",
		"--host-uds=none", "--host-fifo=none", "--character-device-policy=emulated-only", "--oci-seccomp",
	}
	if !r.o.Cgroups {
		f = append(f, "--ignore-cgroups")
	}
	return f
}

func (r *Runtime) logFile(id wire.SessionID) string {
	return filepath.Join(r.o.LogDir, string(id)+".log")
}

// maxOutput bounds what is read of a command's output, in bytes.
const maxOutput = 1 << 20

// command runs one runsc command to its end and returns its standard output.
func (r *Runtime) command(ctx context.Context, id wire.SessionID, args ...string) ([]byte, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("runsc %s: %w", args[0], err)
	}
	defer read.Close()
	p, err := process.Start(process.Command{
		Executable: r.o.Executable,
		Args:       append(r.flags(id), args...),
		Env:        []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		Files:      []int{r.null, int(write.Fd()), int(write.Fd())},
		// A session of its own: a terminal's Ctrl-C is for the broker alone.
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	write.Close()
	if err != nil {
		return nil, fmt.Errorf("runsc %s: %w", args[0], err)
	}
	defer p.Close()
	// What a command leaves running must not make us wait for its output.
	var out bytes.Buffer
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(&out, io.LimitReader(read, maxOutput))
	}()
	if err := p.Wait(ctx); err != nil {
		kill, cancel := context.WithTimeout(context.Background(), killTimeout)
		defer cancel()
		err = errors.Join(err, p.Kill(kill))
		read.Close()
		<-copied
		return nil, late(args[0], err)
	}
	read.SetReadDeadline(time.Now().Add(outputGrace))
	<-copied
	if exit, ok := p.Exit(); !ok || exit.Code != 0 {
		return nil, r.failed(id, args[0], exit, out.Bytes())
	}
	return out.Bytes(), nil
}

const (
	// killTimeout bounds the wait for a killed command of runsc's.
	killTimeout = 5 * time.Second
	// outputGrace is how long output is read after a command has ended.
	outputGrace = 200 * time.Millisecond
	// logTail is how much of runsc's log an error carries, in bytes.
	logTail = 2048
)

// late is the error of a command that was cut off.
func late(command string, err error) error {
	return &wire.Error{
		Code:    wire.CodeTimeout,
		Message: "runsc " + command + " was ended before it was done",
		Advice:  "look at the load of the host and try again",
		Err:     err,
	}
}

// failed is the error of a command, with what runsc said.
func (r *Runtime) failed(id wire.SessionID, command string, exit process.Exit, out []byte) error {
	said := bytes.TrimSpace(out)
	if len(said) == 0 {
		said = r.tail(id)
	}
	// It may have been deleted meanwhile. What runsc says is no guide: it says
	// "does not exist" of other things too.
	if known, err := r.knows(id); err == nil && !known {
		return fmt.Errorf("runsc %s: %w", command, ErrNotFound)
	}
	return &wire.Error{
		Code:    wire.CodeRuntimeFailed,
		Message: fmt.Sprintf("runsc %s ended with %s and said: %s", command, exit, said),
		Advice:  "run broker-admin doctor; the whole log of runsc is in the folder of logs",
	}
}

func (r *Runtime) tail(id wire.SessionID) []byte {
	b, err := os.ReadFile(r.logFile(id))
	if err != nil {
		return []byte("nothing")
	}
	if len(b) > logTail {
		b = b[len(b)-logTail:]
	}
	return bytes.TrimSpace(b)
}
