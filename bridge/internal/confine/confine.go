package confine

import (
	"fmt"
	"runtime"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// Apply makes sure that the process can't gain or lend a privilege: it is not
// root in any of its uids, every capability set is empty, it can't be traced or
// dumped (PR_SET_DUMPABLE, prctl(2)), no_new_privs is set on all threads
// (PR_SET_NO_NEW_PRIVS), and the kernel does for it what a running bridge needs
// and nothing else. Errors: CodePermissionDenied for root or a capability.
func Apply() error {
	if r, e, s := unix.Getresuid(); r == 0 || e == 0 || s == 0 {
		return refuse("the bridge must not run as root", nil)
	}
	if err := noCapabilities(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return refuse("the process can't be made undumpable", err)
	}
	// The filter brings this thread's flag to all.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return refuse("no_new_privs can't be set", err)
	}
	if err := filter().InstallProcess(); err != nil {
		return refuse("system calls can't be forbidden", err)
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
