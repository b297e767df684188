package workspace

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mount is one line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
type mount struct {
	id, parent int
	point      string
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
		if end < 6 {
			return nil, fmt.Errorf("read the mounts: %.200q is no line of them", line)
		}
		id, err := strconv.Atoi(f[0])
		parent, err2 := strconv.Atoi(f[1])
		if err := errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf("read the mounts: %w", err)
		}
		m := mount{id: id, parent: parent, point: unescape(f[4]), private: true}
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
func below(dir, path string) bool { return strings.HasPrefix(path, dir+"/") }

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

// errMoved: the folder is renamed all the time, so its mounts can't be told.
var errMoved = errors.New("the folder was renamed while its mounts were looked for")

// mountsOn returns what is mounted on the folder or beneath it. A mount that
// is made meanwhile may be missing.
func mountsOn(fd int) ([]string, error) {
	id, err := mountID(fd)
	if err != nil {
		return nil, err
	}
	const attempts = 16
	for range attempts {
		before, err := os.Readlink(fdPath(fd))
		if err != nil {
			return nil, fmt.Errorf("find the folder's path: %w", err)
		}
		all, err := mounts()
		if err != nil {
			return nil, err
		}
		// The table holds paths: they are the folder's only if it had the same
		// one before and after.
		if after, err := os.Readlink(fdPath(fd)); err != nil || after != before {
			continue
		}
		var found []string
		for _, m := range all {
			// What is mounted deeper hangs on one whose parent this is.
			if m.parent == id && m.id != id && (m.point == before || below(before, m.point)) {
				found = append(found, m.point)
			}
		}
		return found, nil
	}
	return nil, errMoved
}

// nlink is 0 for a folder that was removed.
func nlink(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("look at the folder: %w", err)
	}
	return uint64(st.Nlink), nil
}
