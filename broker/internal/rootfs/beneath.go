package rootfs

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// openBeneath opens a name relative to a folder (openat2(2)): never above it,
// through a symlink, or on another mount. The caller owns the descriptor, which
// is close-on-exec.
func openBeneath(dir int, name string, flags int) (int, error) {
	return openat2(dir, name, flags, unix.RESOLVE_BENEATH)
}

// openChild is openBeneath for a name that was read from the folder. EXDEV says
// that something is mounted there, and nothing else: that a folder was renamed
// to elsewhere meanwhile is no concern of a single name. With O_PATH a symlink
// is opened itself.
func openChild(dir int, name string, flags int) (int, error) {
	return openat2(dir, name, flags, 0)
}

func openat2(dir int, name string, flags int, resolve uint64) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW),
		Resolve: resolve | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	// EAGAIN: a rename or a mount anywhere on the host ran beside the look-up.
	const attempts = 128
	fd, err := -1, error(unix.EAGAIN)
	for i := 0; i < attempts && (err == unix.EAGAIN || err == unix.EINTR); i++ {
		fd, err = unix.Openat2(dir, name, &how)
	}
	return fd, err
}

// fdPath names a descriptor of ours for a look-up by path.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
