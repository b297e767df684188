package seccomp

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Install puts the filter on the calling thread, and on all that it makes and
// executes, for good. The thread needs no_new_privs (PR_SET_NO_NEW_PRIVS) or
// CAP_SYS_ADMIN.
func (f Filter) Install() error { return f.install(0) }

// InstallProcess puts the filter, and the calling thread's no_new_privs, on
// every thread of the process. It fails if a thread has filters that the
// calling one has not.
func (f Filter) InstallProcess() error { return f.install(unix.SECCOMP_FILTER_FLAG_TSYNC) }

func (f Filter) install(flags uintptr) error {
	program, err := f.Assemble(Native)
	if err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	tid, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("seccomp: install: %w", errno)
	}
	if tid != 0 {
		return fmt.Errorf("seccomp: install: thread %d has other filters", tid)
	}
	return nil
}
