package launch

import (
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// RunIfStub never returns in a process that Start started from our own binary.
// Call it first in main, and in TestMain of tests that start processes.
func RunIfStub() {
	if len(os.Args) < 5 || os.Args[0] != stubName {
		return
	}
	runtime.LockOSThread()
	var n [3]int
	for i := range n {
		var err error
		if n[i], err = strconv.Atoi(os.Args[1+i]); err != nil {
			os.Exit(1)
		}
	}
	executable := n[2]
	report := executable + 1
	err := become(os.Args[4:], n[0], n[1], executable, report)
	_, _ = unix.Write(report, []byte(err.Error()))
	os.Exit(1)
}

// become returns only if it fails. The kernel ends all other threads at exec,
// so what this one took upon itself is what the program has.
func become(args []string, uid, gid, executable, report int) error {
	for _, fd := range []int{executable, report} {
		unix.CloseOnExec(fd)
	}
	if err := Restrict(uid, gid); err != nil {
		return err
	}
	if err := Landlock(executable); err != nil {
		return err
	}
	if err := filter().Install(); err != nil {
		return err
	}
	err := unix.Exec("/proc/self/fd/"+strconv.Itoa(executable), args, nil)
	return fmt.Errorf("execute the program: %w", err)
}
