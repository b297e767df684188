package layout

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/trusted"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// Bind makes a socket at the path that the users alone may connect to, once
// the caller listens on it. It is non-blocking, close-on-exec and the
// caller's. No descriptors can be sent to it, nor to what is accepted from it,
// where the kernel can refuse them: see RefuseRights. Errors: those of Share.
func Bind(path string, uids []uint32) (fd int, err error) {
	dir, err := trusted.OpenDir(filepath.Dir(path))
	if err != nil {
		return -1, err
	}
	defer dir.Close()
	return bindIn(dir, filepath.Base(path), uids)
}

// bindIn uses the folder that was opened, whatever its path leads to by now.
func bindIn(dir *os.File, name string, uids []uint32) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("make a socket: %w", err)
	}
	err = RefuseRights(fd)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: through(dir, name)})
	}
	if err == nil {
		if err = shareIn(dir, name, uids); err != nil {
			err = errors.Join(err, os.Remove(through(dir, name)))
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("make the socket %s: %w", filepath.Join(dir.Name(), name), err)
	}
	return fd, nil
}

// RefuseRights makes the kernel refuse descriptors that are sent to a socket
// or to one that it accepts from then on (SO_PASSRIGHTS, Linux 6.16). Without
// it a read drops them, and has to wait for as long as closing them takes: a
// TCP socket with SO_LINGER can make that long.
func RefuseRights(fd int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return nil
	}
	return err
}

// Share lets the users connect to a bound socket, and nobody else, root aside
// (R11): one gets it as its own, several get entries of an access control
// list, none leaves it root's. It never goes through a mode that lets others
// in. Error: CodeInvalidConfig when there are several users and the file
// system has no such lists; errors.Is matches fs.ErrNotExist when there is no
// socket.
func Share(path string, uids []uint32) error {
	dir, err := trusted.OpenDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return shareIn(dir, filepath.Base(path), uids)
}

const accessList = "system.posix_acl_access"

func shareIn(dir *os.File, name string, uids []uint32) error {
	f, err := os.OpenFile(through(dir, name), unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("share a socket: %w", err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Mode().Type() != fs.ModeSocket {
		return refuse("%s is no socket", filepath.Join(dir.Name(), name))
	}
	uids = slices.Compact(slices.Sorted(slices.Values(uids)))
	// Through its descriptor, so that all is about one inode.
	inode := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	owner := 0
	if len(uids) == 1 {
		owner = int(uids[0])
	}
	if len(uids) < 2 {
		// Where there are no lists there is none to remove.
		err = unix.Removexattr(inode, accessList)
		if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) {
			err = nil
		}
		if err == nil {
			err = os.Chmod(inode, 0o600)
		}
	}
	if err == nil {
		err = os.Chown(inode, owner, 0)
	}
	if err == nil && len(uids) > 1 {
		// The mode follows from the list.
		err = unix.Setxattr(inode, accessList, encodeList(uids), 0)
	}
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return &wire.Error{
			Code: wire.CodeInvalidConfig, Message: fmt.Sprintf("a deployment with %d users needs access control lists, which the file system of the sockets has not", len(uids)),
			Advice: "put it on tmpfs, ext4, xfs or btrfs, or give the deployment one user", Err: err,
		}
	case err != nil:
		return fmt.Errorf("share a socket: %w", err)
	}
	return nil
}

// through names a file by the descriptor of its folder. Such a path is short,
// and leads to the folder that was opened. The caller keeps the folder open.
func through(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

// Tags and permissions of entries (linux/posix_acl.h); the version is
// linux/posix_acl_xattr.h's.
const (
	listVersion   = 2
	tagOwner      = 0x01
	tagUser       = 0x02
	tagOwnerGroup = 0x04
	tagMask       = 0x10
	tagOther      = 0x20
	noID          = 1<<32 - 1
	readWrite     = 6
)

// encodeList makes the list by which root and the users may read and write,
// which is what connecting needs (unix(7)). The uids are in order and differ.
func encodeList(uids []uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, listVersion)
	entry := func(tag, permissions uint16, id uint32) {
		b = binary.LittleEndian.AppendUint16(b, tag)
		b = binary.LittleEndian.AppendUint16(b, permissions)
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	entry(tagOwner, readWrite, noID)
	for _, uid := range uids {
		entry(tagUser, readWrite, uid)
	}
	entry(tagOwnerGroup, 0, noID)
	entry(tagMask, readWrite, noID)
	entry(tagOther, 0, noID)
	return b
}
