package confine

import (
	"fmt"
	"syscall"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// Apply makes sure that the process can't gain or lend a privilege: it is not
// root in any of its uids, no_new_privs is set (PR_SET_NO_NEW_PRIVS, prctl(2)),
// it can't be traced or dumped (PR_SET_DUMPABLE), every capability set is
// empty, and it can make no other process. Errors: CodePermissionDenied for
// root or a capability.
func Apply() error {
	if r, e, s := unix.Getresuid(); r == 0 || e == 0 || s == 0 {
		return refuse("the bridge must not run as root", nil)
	}
	if err := setNoNewPrivs(); err != nil {
		return refuse("no_new_privs can't be set", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return refuse("the process can't be made undumpable", err)
	}
	if err := noCapabilities(); err != nil {
		return err
	}
	if err := stayAlone(); err != nil {
		return refuse("new processes can't be forbidden (seccomp)", err)
	}
	return nil
}

// setNoNewPrivs sets the flag on every thread, unless it came with the exec:
// prctl(2) sets it for the calling thread alone. Programs with cgo can't do
// that (ENOTSUP) and need it from the broker.
func setNoNewPrivs() error {
	set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil || set == 1 {
		return err
	}
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

func noCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return refuse("the capabilities can't be read", err)
	}
	for i, d := range data {
		if d.Effective|d.Permitted|d.Inheritable != 0 {
			return refuse(fmt.Sprintf("the process has capabilities (word %d: effective %#x, permitted %#x, inheritable %#x)", i, d.Effective, d.Permitted, d.Inheritable), nil)
		}
	}
	return nil
}

func refuse(message string, cause error) *wire.Error {
	return &wire.Error{
		Code:    wire.CodePermissionDenied,
		Message: message,
		Advice:  "only the broker starts the bridge, under an unprivileged user of its own",
		Err:     cause,
	}
}
