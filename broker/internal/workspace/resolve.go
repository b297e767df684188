package workspace

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// Dir is a resolved workspace, or a folder below one: the folder itself,
// whatever becomes of its path. It is not safe for concurrent use. Close it.
type Dir struct {
	fd int
	// path is where it was found; for errors only.
	path string
}

// openat2 is replaced by tests of kernels that fail.
var openat2 = unix.Openat2

// attempts bounds how often something is tried again that others can make fail
// by renaming or mounting in a loop. They must not keep us here, nor get an
// answer that was not vouched for.
const attempts = 128

// Open resolves a registered root: an absolute path in its shortest form. The
// path is the registration: whichever folder stands at it is the workspace,
// also when it is another one than yesterday. Who can put another one there
// owns the folder above, and gains nothing: an agent has the registered user's
// rights alone, and what Apart refuses is refused at each creation.
//
// Errors, whose messages name no path of the host: CodePathSymlink,
// CodePathMissing, CodePathNotFolder, CodePathTooLong, CodePathUnstable, and
// CodeWorkspaceUnresolvable for the rest.
//
// RESOLVE_NO_XDEV is of no use here: the walk begins at "/", and a root may
// well lie on a mount of its own. What stands in its place: the path comes
// from the root-owned registry only, no component of it may be a link, Pin
// refuses a folder with a mount beneath it, and the pin is a clone of the one
// mount that the walk ended in, which shows nothing that is mounted on it.
func Open(root string) (*Dir, error) {
	if root == "" || root[0] != '/' || root == "/" || path.Clean(root) != root || strings.ContainsRune(root, 0) {
		return nil, unresolvable(root, "its root is not an absolute path in its shortest form, below /", nil)
	}
	slash, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, unresolvable(root, "the host's root can't be opened", err)
	}
	defer unix.Close(slash)
	return walk(slash, root[1:], root, 0)
}

// Sub resolves a folder below the workspace: a relative path in its shortest
// form, as package wire lets through. It never leaves the workspace, and
// crosses no link and no mount. The errors are those of Open, and
// CodePathCrossesMount. The caller closes both folders.
func (d *Dir) Sub(folder string) (*Dir, error) {
	place := d.path + "/" + folder
	if !filepath.IsLocal(folder) || path.Clean(folder) != folder || folder == "." {
		return nil, unresolvable(place, "the folder is not a relative path in its shortest form", nil)
	}
	return walk(d.fd, folder, place, unix.RESOLVE_NO_XDEV)
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

// walk opens a folder without following any link on the way (openat2(2)).
func walk(from int, name, place string, resolve uint64) (*Dir, error) {
	how := unix.OpenHow{
		// Without O_NOFOLLOW: with O_PATH it would open a link at the end.
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: resolve | unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	var err error
	for range attempts {
		var fd int
		fd, err = openat2(from, name, &how)
		if err == nil {
			return &Dir{fd: fd, path: place}, nil
		}
		// EAGAIN: the kernel can't vouch for the walk, because of a rename or a
		// mount anywhere on the host. EXDEV: there is a mount on the way, or a
		// folder was moved out of the workspace while the walk was in it.
		if err != unix.EAGAIN && err != unix.EXDEV && err != unix.EINTR {
			break
		}
	}
	code, why := wire.CodeWorkspaceUnresolvable, "it can't be opened"
	switch err {
	case unix.ELOOP:
		code, why = wire.CodePathSymlink, "a component of its path is a symbolic link"
	case unix.ENOENT:
		code, why = wire.CodePathMissing, "it does not exist"
	case unix.ENOTDIR:
		code, why = wire.CodePathNotFolder, "a component of its path is not a folder"
	case unix.ENAMETOOLONG:
		code, why = wire.CodePathTooLong, "its path is too long"
	case unix.EXDEV:
		code, why = wire.CodePathCrossesMount, "something is mounted on a component of its path below the workspace"
	case unix.EAGAIN:
		code, why = wire.CodePathUnstable, "its path is renamed or mounted over all the time"
	case unix.ENOSYS:
		why = "the kernel is older than 5.6"
	}
	return nil, refuse(code, place, why, err)
}

// refuse makes an error whose message is for clients; the path is for the log.
func refuse(code wire.Code, place, why string, err error) error {
	if err == nil {
		err = errors.New("refused")
	}
	return &wire.Error{
		Code: code, Message: why, Err: fmt.Errorf("%.400q: %w", place, err),
		Advice: "name an existing folder by its real path, without links and mounts; of a workspace itself, have the operator correct the registry or the folder",
	}
}

func unresolvable(place, why string, err error) error {
	return refuse(wire.CodeWorkspaceUnresolvable, place, why, err)
}

// fdPath names a descriptor of ours for a look-up by path.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
