package workspace

import (
	"errors"
	"fmt"
	"os"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// mountSetattr is replaced by tests of kernels before 5.12.
var mountSetattr = unix.MountSetattr

// Pin mounts the workspace at target, an empty folder directly below a folder
// that PreparePinRoot made private. The mount is private, nosuid, nodev and, if
// asked for, read-only. It shows the folder that Open found, and nothing that
// is mounted on the host beneath it, now or later. On failure nothing stays
// mounted.
//
// A workspace that has mounts already is refused (workspace_has_mounts),
// because the agent would see the folders that they cover. One that is made
// between the look and the clone is as one made later.
func (d *Dir) Pin(target string, readOnly bool) error {
	if n, err := nlink(d.fd); err != nil || n == 0 {
		return refuse(wire.CodePathMissing, d.path, "it was removed", err)
	}
	v, err := d.look()
	if err != nil {
		return err
	}
	if found := v.beneath(); len(found) > 0 {
		return hasMounts(d.path, found)
	}
	clone, err := unix.OpenTree(d.fd, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return unresolvable(d.path, "its mount can't be cloned; it may be unbindable, or unmounted by now", err)
	}
	defer unix.Close(clone)

	attributes := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
	if readOnly {
		attributes |= unix.MOUNT_ATTR_RDONLY
	}
	// Before the clone is anywhere: no moment in which a mount can reach it.
	err = mountSetattr(clone, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attributes, Propagation: unix.MS_PRIVATE})
	old := errors.Is(err, unix.ENOSYS)
	if err != nil && !old {
		return pinError(target, "restrict the clone", err)
	}
	if err := unix.MoveMount(clone, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return pinError(target, "move the clone there", err)
	}
	err = nil
	if old {
		err = restrict(target, readOnly)
	}
	if err == nil {
		err = d.checkPinned(target)
	}
	if err != nil {
		return errors.Join(err, unmount(target))
	}
	return nil
}

// PinTree is Pin, read-only, for a folder that is open already, as fd, which
// stays the caller's. Name is for messages. It makes the target, and removes
// what was pinned there before.
func PinTree(fd int, name, target string) error {
	if err := Unpin(target); err != nil {
		return err
	}
	if err := unix.Mkdir(target, 0o700); err != nil {
		return pinError(target, "make its folder", err)
	}
	return (&Dir{fd: fd, path: name}).Pin(target, true)
}

// restrict is for Linux before 5.12, which has no mount_setattr(2). A mount
// that was made on the host before the pin became private may have reached it:
// checkPinned looks.
func restrict(target string, readOnly bool) error {
	if err := unix.Mount("", target, "", unix.MS_PRIVATE, ""); err != nil {
		return pinError(target, "make it private", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(target, &st); err != nil {
		return pinError(target, "read its flags", err)
	}
	// A remount sets all flags anew: keep what the workspace's own mount has.
	// The ST_ and MS_ constants of these are the same numbers (statfs(2)).
	const kept = unix.MS_RDONLY | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME
	flags := uintptr(st.Flags)&kept | unix.MS_REMOUNT | unix.MS_BIND | unix.MS_NOSUID | unix.MS_NODEV
	if readOnly {
		flags |= unix.MS_RDONLY
	}
	if err := unix.Mount("", target, "", flags, ""); err != nil {
		return pinError(target, "restrict it", err)
	}
	return nil
}

// checkPinned makes sure that the pin is what Pin promises.
func (d *Dir) checkPinned(target string) error {
	var want, got unix.Stat_t
	err := errors.Join(unix.Fstat(d.fd, &want), unix.Lstat(target, &got))
	if err != nil {
		return pinError(target, "look at it", err)
	}
	if want.Dev != got.Dev || want.Ino != got.Ino {
		return pinError(target, "check it", errors.New("another folder is mounted there"))
	}
	all, err := mounts()
	if err != nil {
		return pinError(target, "check it", err)
	}
	private := false
	for _, m := range all {
		if m.point == target {
			private = m.private
		}
		if below(target, m.point) {
			return hasMounts(d.path, []string{m.point})
		}
	}
	if !private {
		return pinError(target, "check it", errors.New("it is not a private mount"))
	}
	return nil
}

// PreparePinRoot makes dir, an existing root-owned folder named by an absolute
// path without links, a private mount of itself, so that neither the pins
// below it nor what is mounted elsewhere propagates. It is idempotent.
func PreparePinRoot(dir string) error {
	d, err := Open(dir)
	if err != nil {
		return err
	}
	if err := d.Close(); err != nil {
		return err
	}
	m, err := mountAt(dir)
	if err != nil {
		return err
	}
	if m == nil {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return pinError(dir, "bind it to itself", err)
		}
	}
	// Also for one that is there: a broker may have died in between.
	if m == nil || !m.private {
		if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
			return pinError(dir, "make it private", err)
		}
	}
	return nil
}

// ReleasePinRoot undoes PreparePinRoot. It fails with EBUSY while a pin is
// left. It is idempotent.
func ReleasePinRoot(dir string) error {
	m, err := mountAt(dir)
	if err != nil || m == nil {
		return err
	}
	if err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW); err != nil {
		return pinError(dir, "unmount it", err)
	}
	return nil
}

// Unpin removes whatever is mounted at target, and the folder, which is empty
// then. Sandboxes that use the pin keep it. It is idempotent.
func Unpin(target string) error {
	if err := unmount(target); err != nil {
		return err
	}
	if err := unix.Rmdir(target); err != nil && err != unix.ENOENT {
		return pinError(target, "remove its folder", err)
	}
	return nil
}

// unmount removes all mounts that lie on each other at target.
func unmount(target string) error {
	const most = 64
	for range most {
		switch err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err {
		case nil:
		case unix.EINVAL, unix.ENOENT: // no mount point, or nothing there
			return nil
		default:
			return pinError(target, "unmount it", err)
		}
	}
	return pinError(target, "unmount it", fmt.Errorf("more than %d mounts lie on each other", most))
}

// Pins returns the mount points strictly below dir, each once, those made last
// first, so that Unpin can take them in this order.
func Pins(dir string) ([]string, error) {
	all, err := mounts()
	if err != nil {
		return nil, err
	}
	var found []string
	seen := map[string]bool{}
	for i := len(all) - 1; i >= 0; i-- {
		if p := all[i].point; below(dir, p) && !seen[p] {
			seen[p] = true
			found = append(found, p)
		}
	}
	return found, nil
}

// mountAt returns the uppermost mount at dir, or nil.
func mountAt(dir string) (*mount, error) {
	all, err := mounts()
	if err != nil {
		return nil, err
	}
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].point == dir {
			return &all[i], nil
		}
	}
	return nil, nil
}

func hasMounts(place string, found []string) error {
	return &wire.Error{
		Code: wire.CodeWorkspaceHasMounts, Message: "something is mounted beneath it",
		Advice: "have the operator unmount it, or register the folder that is mounted there as a workspace of its own",
		Err:    fmt.Errorf("%.400q has mounts at %.400q", place, found),
	}
}

func pinError(target, what string, err error) error {
	return fmt.Errorf("pin at %s: %s: %w", target, what, os.NewSyscallError("mount", err))
}
