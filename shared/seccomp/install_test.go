package seccomp

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain is the filtered process too: a filter is for good.
func TestMain(m *testing.M) {
	switch os.Args[0] {
	case "fails", "killed":
		os.Exit(filtered(os.Args[0]))
	}
	os.Exit(m.Run())
}

// filtered makes calls that the kernel must have asked the filter about, on
// threads that were there before it and on others.
func filtered(name string) int {
	ready, installed := make(chan int, 8), make(chan bool)
	var threads sync.WaitGroup
	failed := make(chan string, 64)
	try := func() {
		if _, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err != unix.ENOTSUP {
			failed <- fmt.Sprint("getpriority gave ", err)
		}
		if _, err := unix.Getpriority(unix.PRIO_USER, 0); err != nil {
			failed <- fmt.Sprint("getpriority of a user gave ", err)
		}
	}
	for range 8 {
		threads.Go(func() {
			runtime.LockOSThread()
			ready <- unix.Gettid()
			<-installed
			try()
		})
	}
	for range 8 {
		<-ready
	}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 1
	}
	action := Fail(unix.ENOTSUP)
	if name == "killed" {
		action = Kill
	}
	f := Filter{Default: Allow, Rules: []Rule{{Number: unix.SYS_GETPRIORITY, Action: action, When: []Arg{{Index: 0, Value: unix.PRIO_PROCESS}}}}}
	if err := f.InstallProcess(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	close(installed)
	threads.Wait()
	threads.Go(try)
	threads.Wait()
	close(failed)
	for f := range failed {
		fmt.Fprintln(os.Stderr, f)
		return 1
	}
	return 0
}

// R3: the kernel takes the program, asks it on every thread, and kills the
// whole process where it says so.
func TestInstall(t *testing.T) {
	for _, name := range []string{"fails", "killed"} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Args = []string{name}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		switch {
		case name == "fails" && err != nil:
			t.Errorf("%s: %v: %s", name, err, out)
		case name == "killed" && (!errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGSYS):
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}
