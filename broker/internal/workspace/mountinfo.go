package workspace

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// mount is one line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
type mount struct {
	id, parent int
	// device and root are the file system, and the folder of it that is
	// mounted; kind is its type.
	device, root, kind string
	point              string
	// private says that mounts made elsewhere don't appear in it.
	private bool
}

// mounts returns all mounts of our namespace in the order of their making.
// statmount(2) would need Linux 6.8.
func mounts() ([]mount, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read the mounts: %w", err)
	}
	return parseMounts(b)
}

func parseMounts(b []byte) ([]mount, error) {
	var all []mount
	for line := range bytes.Lines(b) {
		f := strings.Split(strings.TrimSuffix(string(line), "\n"), " ")
		end := slices.Index(f, "-")
		if end < 6 || end+1 >= len(f) {
			return nil, fmt.Errorf("read the mounts: %.200q is no line of them", line)
		}
		id, err := strconv.Atoi(f[0])
		parent, err2 := strconv.Atoi(f[1])
		if err := errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf("read the mounts: %w", err)
		}
		m := mount{id: id, parent: parent, device: f[2], root: unescape(f[3]), kind: f[end+1], point: unescape(f[4]), private: true}
		for _, tag := range f[6:end] {
			if strings.HasPrefix(tag, "shared:") || strings.HasPrefix(tag, "master:") {
				m.private = false
			}
		}
		all = append(all, m)
	}
	return all, nil
}

// unescape undoes the kernel's \ooo, which stands for space, tab, newline and
// backslash.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// below reports whether the path lies strictly beneath dir.
func below(dir, path string) bool {
	return dir == "/" && path != "/" || strings.HasPrefix(path, dir+"/")
}

// mountID returns the id of the mount that the descriptor is in. It is not
// reused while the descriptor is open.
func mountID(fd int) (int, error) {
	b, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return 0, fmt.Errorf("find the mount of a descriptor: %w", err)
	}
	for line := range bytes.Lines(b) {
		if id, ok := bytes.CutPrefix(line, []byte("mnt_id:")); ok {
			return strconv.Atoi(string(bytes.TrimSpace(id)))
		}
	}
	return 0, errors.New("find the mount of a descriptor: the kernel does not tell")
}

// view is one look at a folder and at all mounts.
type view struct {
	path   string
	mount  mount
	mounts []mount
}

// look sees a folder's path and the mounts together. It returns an error of
// code path_unstable if the folder is renamed all the time.
func (d *Dir) look() (view, error) {
	for range attempts {
		v, err := lookAt(d.fd, nil)
		if err != nil {
			return v, unresolvable(d.path, "its mounts can't be told", err)
		}
		// The table holds paths: they are the folder's only if it had the same
		// one before and after.
		after, err := os.Readlink(fdPath(d.fd))
		if err == nil && after == v.path && v.mount.id != 0 {
			return v, nil
		}
	}
	return view{}, refuse(wire.CodePathUnstable, d.path, "it is renamed or mounted over all the time", nil)
}

// lookAt looks once, at a table of mounts that is read now if there is none.
// The mount is the zero one if the table does not have it.
func lookAt(fd int, table []mount) (v view, err error) {
	id, err := mountID(fd)
	if err != nil {
		return v, err
	}
	if v.path, err = os.Readlink(fdPath(fd)); err != nil {
		return v, fmt.Errorf("find the folder's path: %w", err)
	}
	if v.mounts = table; table == nil {
		if v.mounts, err = mounts(); err != nil {
			return v, err
		}
	}
	if i := slices.IndexFunc(v.mounts, func(m mount) bool { return m.id == id }); i >= 0 {
		v.mount = v.mounts[i]
	}
	return v, nil
}

// beneath returns what is mounted on the folder or beneath it. A mount that is
// made meanwhile may be missing.
func (v view) beneath() []string {
	var found []string
	for _, m := range v.mounts {
		// What is mounted deeper hangs on one whose parent this is.
		if m.parent == v.mount.id && m.id != m.parent && (m.point == v.path || below(v.path, m.point)) {
			found = append(found, m.point)
		}
	}
	return found
}

// nlink is 0 for a folder that was removed.
func nlink(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("look at the folder: %w", err)
	}
	return uint64(st.Nlink), nil
}
