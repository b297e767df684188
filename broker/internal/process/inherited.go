package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// SealInherited makes every descriptor beyond the standard streams
// close-on-exec: what a careless parent left open in us must not reach a
// sandbox or a bridge (R18). Call it first in main, before anything is opened.
func SealInherited() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("seal inherited descriptors: %w", err)
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < 3 {
			continue
		}
		// The one that lists the folder is closed by now.
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil && !errors.Is(err, unix.EBADF) {
			return fmt.Errorf("seal inherited descriptor %d: %w", fd, err)
		}
	}
	return nil
}
