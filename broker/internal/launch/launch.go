package launch

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"golang.org/x/sys/unix"
)

// Options describe one bridge. All descriptors stay the caller's.
type Options struct {
	// Executable is the open, checked, root-owned binary.
	Executable int
	// UID and GID are what it runs as; neither may be 0.
	UID, GID uint32
	// Socket becomes the bridge's descriptor 3.
	Socket int
	// Log becomes its standard error.
	Log int
}

// Start starts the bridge.
//
// The kernel gives a new process the restrictions of the thread that forked
// it. So a thread of ours takes them on, forks, and ends: the child has no new
// privileges and an empty bounding set from its first instruction, and setuid
// happens before exec.
func Start(o Options) (*process.Process, error) {
	if o.UID == 0 || o.GID == 0 {
		return nil, errors.New("start the bridge: it may not run as root")
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start the bridge: open /dev/null: %w", err)
	}
	defer unix.Close(null)
	started := make(chan result, 1)
	go onThrowawayThread(func() {
		if err := restrictThread(); err != nil {
			started <- result{err: err}
			return
		}
		p, err := process.Start(process.Command{
			Executable: o.Executable,
			Args:       []string{"paseo-sandbox-bridge"},
			Files:      []int{null, null, o.Log, o.Socket},
			Sys: &syscall.SysProcAttr{
				Credential: &syscall.Credential{Uid: o.UID, Gid: o.GID},
				// An empty network namespace: the bridge has no network.
				Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWIPC,
				Setsid:     true,
			},
		})
		started <- result{p, err}
	})
	r := <-started
	return r.p, r.err
}

type result struct {
	p   *process.Process
	err error
}

// onThrowawayThread runs f on a thread that ends with it, because the
// goroutine is locked to it and never unlocked. The main thread can't end, and
// what /proc tells of a process is told of that one: it is held meanwhile, so
// that f gets another.
func onThrowawayThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		onThrowawayThread(f)
	}()
	<-done
	runtime.UnlockOSThread()
}

// restrictThread gives up, for this thread and what it forks, whatever an
// executed file could give (prctl(2), capabilities(7)).
func restrictThread() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("start the bridge: no_new_privs: %w", err)
	}
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) && c > 0 {
			return nil // beyond the last capability of this kernel
		}
		if err != nil {
			return fmt.Errorf("start the bridge: drop capability %d: %w", c, err)
		}
	}
}
