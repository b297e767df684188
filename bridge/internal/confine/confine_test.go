package confine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"golang.org/x/sys/unix"
)

// nobody is the user of the confined process.
const nobody = 65534

// TestMain is the confined process too.
func TestMain(m *testing.M) {
	if os.Args[0] == "confined" {
		os.Exit(confined())
	}
	os.Exit(m.Run())
}

// confined says on standard error what went wrong.
func confined() int {
	if err := Apply(); err != nil {
		fmt.Fprintln(os.Stderr, "apply:", err)
		return 1
	}
	status := 0
	for name, number := range map[string]uintptr{"clone": unix.SYS_CLONE, "execve": unix.SYS_EXECVE, "execveat": unix.SYS_EXECVEAT} {
		// The zero arguments would make a child, or fail in another way.
		pid, _, errno := unix.RawSyscall6(number, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno == 0 && pid == 0 {
			os.Exit(0)
		}
		if errno != unix.EPERM {
			fmt.Fprintln(os.Stderr, name, "gave", pid, errno)
			status = 1
		}
	}
	if _, err := syscall.ForkExec("/bin/true", nil, nil); !errors.Is(err, unix.EPERM) {
		fmt.Fprintln(os.Stderr, "fork and exec gave", err)
		status = 1
	}
	// Threads are still made, and bound too.
	var threads sync.WaitGroup
	for range 32 {
		threads.Go(func() {
			runtime.LockOSThread()
			if _, err := syscall.ForkExec("/bin/true", nil, nil); !errors.Is(err, unix.EPERM) {
				fmt.Fprintln(os.Stderr, "fork and exec on another thread gave", err)
			}
		})
	}
	threads.Wait()
	return status
}

// R3: a bridge that was taken over leaves no child behind, which would go on
// with the session's descriptors and the user of a later bridge.
func TestConfinedProcessStaysAlone(t *testing.T) {
	rootonly.Test(t)
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	var said strings.Builder
	cmd := exec.Command("/proc/self/fd/3")
	cmd.Args = []string{"confined"}
	cmd.Dir, cmd.Env, cmd.Stderr = "/", []string{}, &said
	cmd.ExtraFiles = []*os.File{exe}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	// A child has the no_new_privs of the thread that forks it; this one ends
	// with its goroutine.
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			done <- err
			return
		}
		done <- cmd.Run()
	}()
	if err := <-done; err != nil || said.Len() > 0 {
		t.Errorf("%v: %s", err, said.String())
	}
}
