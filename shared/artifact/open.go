package artifact

import (
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// openAt opens a regular file or a directory for reading, close-on-exec, after
// making sure that it is one: opening a pipe blocks and opening a device acts
// on it. The caller owns the descriptor.
func openAt(dirfd int, name string) (int, *unix.Stat_t, error) {
	var before, after unix.Stat_t
	if err := unix.Fstatat(dirfd, name, &before, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return -1, nil, err
	}
	flags := unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY
	switch before.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		flags |= unix.O_DIRECTORY
	case unix.S_IFLNK:
		return -1, nil, unix.ELOOP
	default:
		return -1, nil, unix.EINVAL
	}
	fd, err := retryEINTR(func() (int, error) { return unix.Openat(dirfd, name, flags, 0) })
	if err != nil {
		return -1, nil, err
	}
	if err := unix.Fstat(fd, &after); err != nil {
		_ = unix.Close(fd)
		return -1, nil, err
	}
	if after.Dev != before.Dev || after.Ino != before.Ino || after.Mode != before.Mode {
		_ = unix.Close(fd)
		return -1, nil, unix.ESTALE
	}
	return fd, &after, nil
}

// openTrusted opens an absolute path component by component without following
// a symlink, and refuses it when a directory on the way could be changed by
// someone else. The caller owns the descriptor.
func openTrusted(name string, want owner) (int, *unix.Stat_t, error) {
	if !filepath.IsAbs(name) || filepath.Clean(name) != name || name == "/" {
		return -1, nil, errorf(CodeMissing, nil, "the path %q is not absolute and clean", name)
	}
	dir, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil, ioError(err, "the root directory can't be opened")
	}
	parts := strings.Split(name[1:], "/")
	for i, part := range parts {
		here := "/" + strings.Join(parts[:i], "/")
		var st unix.Stat_t
		if err := unix.Fstat(dir, &st); err != nil {
			_ = unix.Close(dir)
			return -1, nil, ioError(err, "%q can't be examined", here)
		}
		if !trustedParent(&st, want) {
			_ = unix.Close(dir)
			return -1, nil, errorf(CodeNotRootOwned, nil, "%q, above the artifact %q, can be changed by users other than root", here, name)
		}
		var next int
		var nextStat *unix.Stat_t
		if i == len(parts)-1 {
			next, nextStat, err = openAt(dir, part)
		} else {
			next, err = unix.Openat(dir, part, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		}
		_ = unix.Close(dir)
		if err == unix.ELOOP || (err == unix.ENOTDIR && i < len(parts)-1) {
			return -1, nil, errorf(CodeForbiddenEntry, err, "%q is a symlink or not a directory; give the real path", filepath.Join(here, part))
		}
		if err == unix.EINVAL {
			return -1, nil, errorf(CodeForbiddenEntry, err, "%q is neither a file nor a directory", name)
		}
		if err != nil {
			return -1, nil, ioError(err, "%q can't be opened", filepath.Join(here, part))
		}
		if nextStat != nil {
			return next, nextStat, nil
		}
		dir = next
	}
	panic("unreachable: a path has a last component")
}

// CheckPlace says whether artifacts in the directory dir could be trusted: no
// one but root can change it or what is above it, and no symlink leads there.
func CheckPlace(dir string) error { return checkPlace(dir, rootOwner) }

func checkPlace(dir string, want owner) error {
	fd, st, err := openTrusted(dir, want)
	if err != nil {
		return err
	}
	_ = unix.Close(fd)
	if !trustedParent(st, want) {
		return errorf(CodeNotRootOwned, nil, "%q can be changed by users other than root", dir)
	}
	return nil
}

// reopenDir opens a directory anew, since a listing moves the offset of the
// description it uses. The caller owns the descriptor.
func reopenDir(fd int) (int, error) {
	own, err := retryEINTR(func() (int, error) {
		return unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return -1, ioError(err, "a directory of the artifact can't be opened again")
	}
	return own, nil
}

func retryEINTR[T any](call func() (T, error)) (T, error) {
	for {
		v, err := call()
		if err != unix.EINTR {
			return v, err
		}
	}
}
