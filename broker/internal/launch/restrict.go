package launch

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// limits are what one process may use (getrlimit(2)); of processes, what all
// of its user may, threads counted. Files may be large: RLIMIT_FSIZE would
// count the offsets of the spool, which only grow.
var limits = map[int]uint64{
	unix.RLIMIT_CORE:     0,
	unix.RLIMIT_MEMLOCK:  0,
	unix.RLIMIT_MSGQUEUE: 0,
	unix.RLIMIT_NICE:     0,
	unix.RLIMIT_RTPRIO:   0,
	unix.RLIMIT_NOFILE:   1024,
	unix.RLIMIT_NPROC:    512,
}

// Restrict gives up, for the calling thread and what it executes, its user,
// its groups, every capability, and whatever an executed file could give back.
// Lock the goroutine to its thread and execute next: other threads keep what
// they have, but for limits, umask and working directory. Descriptors stay.
func Restrict(uid, gid int) error {
	unix.Umask(0o077)
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("change to /: %w", err)
	}
	for resource, limit := range limits {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("limit resource %d: %w", resource, err)
		}
	}
	if err := emptyBounding(); err != nil {
		return err
	}
	if err := setUser(uid, gid); err != nil {
		return err
	}
	// The inheritable set outlives the change of the user.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("drop the capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	return nil
}

func emptyBounding() error {
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) && c > 0 {
			return nil // beyond the last capability of this kernel
		}
		if err != nil {
			return fmt.Errorf("drop capability %d for good: %w", c, err)
		}
	}
}

// setUser calls the kernel itself: a library would change all threads.
func setUser(uid, gid int) error {
	for _, c := range [][4]uintptr{
		{unix.SYS_SETGROUPS},
		{unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)},
		{unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)},
	} {
		if _, _, errno := unix.RawSyscall(c[0], c[1], c[2], c[3]); errno != 0 {
			return fmt.Errorf("change the user: %w", errno)
		}
	}
	return nil
}
