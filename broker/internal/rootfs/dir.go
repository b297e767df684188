package rootfs

import (
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// folder is a folder that is copied. Each entry is opened once, and everything
// about it is learned and read through that descriptor.
type folder struct {
	ctx context.Context
	*sink
	// store is the place of the import itself, which a source can't hold.
	store unix.Stat_t
}

// readDir adds what a folder holds. What is mounted in it is refused.
func readDir(ctx context.Context, name string, s *sink, store int) error {
	d := folder{ctx: ctx, sink: s}
	if err := unix.Fstat(store, &d.store); err != nil {
		return ioFail(err, "the store can't be examined")
	}
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ioFail(err, "the folder %q can't be opened", name)
	}
	return d.dir(os.NewFile(uintptr(fd), "."))
}

// dir adds a folder and what is in it. It closes the folder.
func (d *folder) dir(f *os.File) error {
	defer f.Close()
	fd, name := int(f.Fd()), f.Name()
	n, before, err := d.examine(fd, name)
	if err != nil {
		return err
	}
	if before.Dev == d.store.Dev && before.Ino == d.store.Ino {
		return fail(CodeForbidden, nil, "%q is the store of imported root file systems", name)
	}
	if err := d.add(n); err != nil {
		return err
	}
	children, err := f.Readdirnames(-1)
	if err != nil {
		return ioFail(err, "%q can't be listed", name)
	}
	slices.Sort(children)
	for _, child := range children {
		if err := d.child(fd, child, path.Join(name, child)); err != nil {
			return err
		}
	}
	return unchanged(fd, name, before)
}

func (d *folder) child(at int, base, name string) error {
	handle, err := openChild(at, base, unix.O_PATH)
	if errors.Is(err, unix.EXDEV) {
		return fail(CodeForbidden, nil, "%.200q is a mount", name)
	}
	if err != nil {
		return ioFail(gone(err, name), "%.200q can't be opened", name)
	}
	defer unix.Close(handle)
	var st unix.Stat_t
	if err := unix.Fstat(handle, &st); err != nil {
		return ioFail(err, "%.200q can't be examined", name)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		fd, err := openChild(handle, ".", unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return ioFail(err, "%.200q can't be opened", name)
		}
		return d.dir(os.NewFile(uintptr(fd), name))
	case unix.S_IFREG:
		return d.file(handle, name)
	case unix.S_IFLNK:
		return d.symlink(handle, name, &st)
	}
	special := map[uint32]Class{unix.S_IFIFO: ClassPipe, unix.S_IFSOCK: ClassSocket, unix.S_IFCHR: ClassDevice, unix.S_IFBLK: ClassDevice}
	return d.add(&node{name: name, kind: kindSpecial, special: special[st.Mode&unix.S_IFMT]})
}

// file adds a regular file, which is open with O_PATH: the second open reaches
// the same inode, whatever its name leads to by now.
func (d *folder) file(handle int, name string) error {
	fd, err := unix.Open(fdPath(handle), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ioFail(err, "%.200q can't be opened", name)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	n, before, err := d.examine(fd, name)
	if err != nil {
		return err
	}
	n.body = f
	if err := d.add(n); err != nil {
		return err
	}
	return unchanged(fd, name, before)
}

func (d *folder) symlink(handle int, name string, st *unix.Stat_t) error {
	buf := make([]byte, unix.PathMax+1)
	n, err := unix.Readlinkat(handle, "", buf)
	if err != nil {
		return ioFail(err, "the symlink %.200q can't be read", name)
	}
	return d.add(&node{name: name, kind: kindSymlink, target: string(buf[:n]), foreign: st.Uid != 0 || st.Gid != 0})
}

// examine makes a node of an open file or folder.
func (d *folder) examine(fd int, name string) (*node, *unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, nil, ioFail(err, "%.200q can't be examined", name)
	}
	n := &node{
		name: name, kind: kindDir, mode: st.Mode & 0o7777, mtime: time.Unix(st.Mtim.Unix()),
		foreign: st.Uid != 0 || st.Gid != 0,
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		n.kind, n.size, n.linked = kindFile, st.Size, st.Nlink > 1
	}
	list := make([]byte, 64<<10) // XATTR_LIST_MAX
	size, err := unix.Flistxattr(fd, list)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil, ioFail(err, "the attributes of %.200q can't be read", name)
	}
	for attribute := range strings.SplitSeq(string(list[:max(size, 0)]), "\x00") {
		switch attribute {
		case "", "security.selinux": // a label is the host's, and no part of the tree
		case capabilities:
			n.capabilities = true
		default:
			n.attributes = true
		}
	}
	return n, &st, nil
}

// unchanged compares what an inode was with what it is.
func unchanged(fd int, name string, before *unix.Stat_t) error {
	var now unix.Stat_t
	if err := unix.Fstat(fd, &now); err != nil {
		return ioFail(err, "%.200q can't be examined", name)
	}
	if now.Size != before.Size || now.Mtim != before.Mtim || now.Ctim != before.Ctim {
		return fail(CodeSourceChanged, nil, "%.200q changed while it was read", name)
	}
	return nil
}

// gone makes a change of the source of a name that was listed and is missing.
func gone(err error, name string) error {
	if errors.Is(err, unix.ENOENT) {
		return fail(CodeSourceChanged, nil, "%.200q was removed while the folder was read", name)
	}
	return err
}
