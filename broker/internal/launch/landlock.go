package launch

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// HasLandlock reports whether the kernel has Landlock; it has none if it is
// older than 5.13, or was built or started without.
func HasLandlock() bool { return rights().Handled_access_fs != 0 }

// Landlock takes every right that the kernel's Landlock knows of (landlock(7))
// from the calling thread and what it makes and executes: to open a path, to
// bind or connect, to signal or reach by an abstract name what is outside.
// Only the file executable, if it is not negative, may still be executed. It
// needs no_new_privs, and does nothing where the kernel has no Landlock. It
// takes nothing from what is open.
func Landlock(executable int) error {
	attr := rights()
	if attr.Handled_access_fs == 0 {
		return nil
	}
	rules, err := createRules(attr)
	if err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	defer unix.Close(rules)
	if executable >= 0 {
		rule := unix.LandlockPathBeneathAttr{
			Allowed_access: unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE,
			Parent_fd:      int32(executable),
		}
		if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(rules), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0); errno != 0 {
			return fmt.Errorf("landlock: allow the program: %w", errno)
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(rules), 0, 0); errno != 0 {
		return fmt.Errorf("landlock: %w", errno)
	}
	return nil
}

// rights asks the kernel for one right after the other: it refuses those that
// it does not know, and a newer one has more than we could name.
func rights() unix.LandlockRulesetAttr {
	var known unix.LandlockRulesetAttr
	for _, field := range []func(*unix.LandlockRulesetAttr) *uint64{
		func(a *unix.LandlockRulesetAttr) *uint64 { return &a.Handled_access_fs },
		func(a *unix.LandlockRulesetAttr) *uint64 { return &a.Handled_access_net },
		func(a *unix.LandlockRulesetAttr) *uint64 { return &a.Scoped },
	} {
		for bit := range 64 {
			var one unix.LandlockRulesetAttr
			*field(&one) = 1 << bit
			fd, err := createRules(one)
			if err != nil {
				break
			}
			unix.Close(fd)
			*field(&known) |= 1 << bit
		}
	}
	return known
}

// createRules makes a set of rules; the descriptor is the caller's and
// close-on-exec. An older kernel takes a longer structure if it ends in zeros.
func createRules(attr unix.LandlockRulesetAttr) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}
