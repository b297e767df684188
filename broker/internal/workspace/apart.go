package workspace

import (
	"errors"
	"fmt"
	"path"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// spot is where something lies in its file system, by whichever mount it is
// reached. Two names of one folder have one spot, and what lies below a folder
// lies below its spot: device and inode of a folder's parents, as ".." finds
// them, can't tell that a bind mount shows a part of another folder.
type spot struct{ device, path string }

func (v view) spot() spot {
	within := v.path[len(v.mount.point):]
	if v.mount.point == "/" {
		within = v.path
	}
	return spot{v.mount.device, path.Join(v.mount.root, within)}
}

// overlaps reports whether one is the other, or lies in it.
func (a spot) overlaps(b spot) bool {
	return a.device == b.device && (a.path == b.path || below(a.path, b.path) || below(b.path, a.path))
}

// kernelKinds are the file systems that are the kernel's and not storage,
// wherever they are mounted.
var kernelKinds = map[string]bool{
	"proc": true, "sysfs": true, "devtmpfs": true, "devpts": true, "cgroup": true, "cgroup2": true, "mqueue": true,
	"debugfs": true, "tracefs": true, "securityfs": true, "configfs": true, "bpf": true, "nsfs": true, "binfmt_misc": true,
}

// Apart makes sure that the folder is none of the protected files and folders,
// holds none and lies in none (R14), whatever mounts and links make of their
// names; nor may it lie in what is mounted in one of them, except below
// pins, where workspaces are. Those that don't exist protect nothing. The
// layers of a union file system are not seen through.
//
// Errors: CodeWorkspaceOverlaps, and those of Open.
func (d *Dir) Apart(protected []string, pins string) error {
	v, err := d.look()
	if err != nil {
		return err
	}
	if !(v.path == v.mount.point || below(v.mount.point, v.path)) {
		return unresolvable(d.path, "its mount is not reachable", nil)
	}
	if kernelKinds[v.mount.kind] {
		return overlaps(d.path, "a file system of the kernel's, "+v.mount.kind)
	}
	for _, name := range protected {
		spots, err := spotsOf(name, pins, v.mounts)
		if err != nil {
			return unresolvable(d.path, "it can't be compared with what is the broker's", fmt.Errorf("%s: %w", name, err))
		}
		for _, s := range spots {
			if v.spot().overlaps(s) {
				return overlaps(d.path, name)
			}
		}
	}
	return nil
}

// spotsOf returns where the file or folder is, and what is mounted in it.
func spotsOf(name, pins string, table []mount) ([]spot, error) {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	v, err := lookAt(fd, table)
	if err != nil {
		return nil, err
	}
	if v.mount.id == 0 {
		return nil, errors.New("it was mounted just now")
	}
	spots := []spot{v.spot()}
	for _, m := range table {
		if below(v.path, m.point) && !below(pins, m.point) {
			spots = append(spots, spot{m.device, m.root})
		}
	}
	return spots, nil
}

func overlaps(place, with string) error {
	return &wire.Error{
		Code: wire.CodeWorkspaceOverlaps, Message: "it overlaps what is the broker's, or the kernel's",
		Advice: "have the operator register a folder apart from them; the broker's log says which it is",
		Err:    fmt.Errorf("%.400q overlaps %s", place, with),
	}
}
