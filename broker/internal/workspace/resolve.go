package workspace

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// Dir is a resolved workspace: the folder itself, whatever becomes of its
// path. It is not safe for concurrent use. Close it.
type Dir struct {
	fd   int
	root string
}

// Open resolves a registered root: an absolute path in its shortest form. It
// returns an error of code workspace_unresolvable when a component is a
// symbolic link, is missing or is no folder.
//
// RESOLVE_NO_XDEV is of no use here: the walk begins at "/", and a root may
// well lie on a mount of its own. What stands in its place: the path comes
// from the root-owned registry only, no component of it may be a link, Pin
// refuses a folder with a mount beneath it, and the pin is a clone of the one
// mount that the walk ended in, which shows nothing that is mounted on it.
func Open(root string) (*Dir, error) {
	if err := checkRoot(root); err != nil {
		return nil, err
	}
	fd, err := walk(root)
	if err != nil {
		return nil, unresolvable(root, reason(err), err)
	}
	return &Dir{fd: fd, root: root}, nil
}

// Close lets go of the folder. Pins stay.
func (d *Dir) Close() error {
	if d.fd < 0 {
		return nil
	}
	err := unix.Close(d.fd)
	d.fd = -1
	return err
}

func checkRoot(root string) error {
	switch {
	case root == "":
		return unresolvable(root, "it is empty", nil)
	case strings.ContainsRune(root, 0):
		return unresolvable(root, "it contains a NUL byte", nil)
	case root[0] != '/':
		return unresolvable(root, "it is not an absolute path", nil)
	case root == "/":
		return unresolvable(root, "it is the root of the host", nil)
	case path.Clean(root) != root:
		return unresolvable(root, "it is not in its shortest form: '.', '..', '//' and a '/' at the end are refused", nil)
	}
	return nil
}

// walk opens a folder without following any link on the way (openat2(2)).
func walk(name string) (int, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open /: %w", err)
	}
	defer unix.Close(root)
	// EAGAIN says that a rename or a mount anywhere on the host ran beside the
	// walk, so that the kernel can't vouch for it. Someone who renames in a
	// loop must not keep us here, nor get an answer that was not vouched for.
	const attempts = 128
	for range attempts {
		var fd int
		fd, err = unix.Openat2(root, strings.TrimPrefix(name, "/"), &how)
		if err == nil {
			return fd, nil
		}
		if err != unix.EAGAIN && err != unix.EINTR {
			break
		}
	}
	return -1, err
}

func reason(err error) string {
	switch {
	case errors.Is(err, unix.ELOOP):
		return "a component of it is a symbolic link"
	case errors.Is(err, unix.ENOENT):
		return "it does not exist"
	case errors.Is(err, unix.ENOTDIR):
		return "a component of it is not a folder, or a link"
	case errors.Is(err, unix.EAGAIN):
		return "something is renamed or mounted all the time while it is resolved"
	case errors.Is(err, unix.ENOSYS):
		return "the kernel is older than 5.6"
	}
	return "it can't be opened"
}

func unresolvable(root, why string, err error) error {
	return &wire.Error{
		Code:    wire.CodeWorkspaceUnresolvable,
		Message: fmt.Sprintf("the workspace's root %.200q was refused: %s", root, why),
		Advice:  "register the real path of an existing folder, without links, and restart the broker",
		Err:     err,
	}
}

// fdPath names a descriptor of ours for a look-up by path.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
