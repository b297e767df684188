package harness

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// Leftovers lists what sessions of this system still hold: processes, mounts
// (the kernel's namespace files among them), loop devices, sockets, cgroups, and
// files of spool, state, bundles, records and runsc. With a running broker its own
// process and sockets are not counted.
func (s *System) Leftovers() ([]string, error) {
	var left []string
	for _, find := range []func() ([]string, error){s.processes, s.mounts, s.devices, s.sockets, s.cgroups, s.files} {
		found, err := find()
		if err != nil {
			return nil, err
		}
		left = append(left, found...)
	}
	sort.Strings(left)
	return left, nil
}

// processes finds those that run one of our programs or name our prefix. The
// broker, this process and the processes that started it are not counted.
func (s *System) processes() ([]string, error) {
	skip := map[int]bool{os.Getpid(): true, s.BrokerPID(): true}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var left []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || skip[pid] {
			continue
		}
		if name, ours := s.ownProcess(pid); ours {
			left = append(left, fmt.Sprintf("process %d %s", pid, name))
		}
	}
	return left, nil
}

// ownProcess tells by the command line, where runsc names its root below the
// prefix, and for a bridge by its log, the only file it has there. A process
// that is gone meanwhile is nobody's.
func (s *System) ownProcess(pid int) (string, bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil || len(cmdline) == 0 {
		return "", false
	}
	words := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
	name := filepath.Base(words[0])
	for _, w := range words {
		if strings.Contains(w, s.Prefix+"/run") {
			return strings.Join(words, " "), true
		}
	}
	if exe, err := os.Readlink(filepath.Join(dir, "exe")); err == nil && strings.HasPrefix(filepath.Base(exe), "paseo-sandbox-bridge") {
		fds, _ := os.ReadDir(filepath.Join(dir, "fd"))
		for _, fd := range fds {
			if target, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil && strings.HasPrefix(target, s.Prefix+"/") {
				return name, true
			}
		}
	}
	return "", false
}

func (s *System) mounts() ([]string, error) {
	all, err := mountsBelow(s.Prefix)
	if err != nil {
		return nil, err
	}
	var left []string
	for _, m := range all {
		// The folder of pins is a private mount for as long as a broker lives,
		// and so is that of the rootfs.
		if s.BrokerPID() != 0 && (m == filepath.Join(s.Prefix, "run", "mounts") || m == filepath.Join(s.Prefix, "run", "mounts", "rootfs")) {
			continue
		}
		left = append(left, "mount "+m)
	}
	return left, nil
}

// mountsBelow returns the mount points below dir, the innermost first
// (proc_pid_mountinfo(5), field 5).
func mountsBelow(dir string) ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, line := range strings.Split(string(b), "\n") {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			found = append(found, f[4])
		}
	}
	sort.Slice(found, func(i, j int) bool { return len(found[i]) > len(found[j]) })
	return found, nil
}

// devices finds the loop devices that hold a file below the prefix, also one
// that was removed.
func (s *System) devices() ([]string, error) {
	all, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var left []string
	for _, path := range all {
		// A device that lets go meanwhile has nothing to read.
		if b, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(b), s.Prefix+"/") {
			left = append(left, "loop device "+filepath.Base(filepath.Dir(filepath.Dir(path))))
		}
	}
	return left, nil
}

func (s *System) sockets() ([]string, error) {
	running := s.BrokerPID() != 0
	var left []string
	err := walk(filepath.Join(s.Prefix, "run"), func(path string, d fs.DirEntry) {
		own := running && (filepath.Base(path) == "broker.sock" || path == s.AdminSocket())
		if d.Type()&fs.ModeSocket != 0 && !own {
			left = append(left, "socket "+path)
		}
	})
	return left, err
}

// CgroupParent is the group that this system's broker makes for its sessions,
// below each hierarchy, or below what systemd has delegated.
func (s *System) CgroupParent() string {
	sum := sha256.Sum256([]byte(filepath.Join(s.Prefix, "run")))
	return fmt.Sprintf("paseo-sandbox-%x", sum[:4])
}

// cgroups finds the sessions' groups, and their parent, in every hierarchy.
func (s *System) cgroups() ([]string, error) {
	var left []string
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		for _, below := range []string{"", "/*"} {
			found, err := filepath.Glob(pattern + s.CgroupParent() + below)
			if err != nil {
				return nil, err
			}
			for _, f := range found {
				if info, err := os.Stat(f); err == nil && info.IsDir() {
					left = append(left, "cgroup "+f)
				}
			}
		}
	}
	return left, nil
}

func (s *System) files() ([]string, error) {
	var left []string
	for _, dir := range []string{"var/spool", "var/state", "var/bundles", "var/sessions", "run/runsc", "run/mounts"} {
		entries, err := os.ReadDir(filepath.Join(s.Prefix, dir))
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		for _, e := range entries {
			if s.BrokerPID() != 0 && dir == "run/mounts" && e.Name() == "rootfs" {
				continue
			}
			left = append(left, "file "+filepath.Join(dir, e.Name()))
		}
	}
	return left, nil
}

func walk(dir string, visit func(path string, d fs.DirEntry)) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		visit(path, d)
		return nil
	})
}

// Alive reports whether the process with this pid lives and began at start, in
// clock ticks since boot (proc_pid_stat(5), field 22). A zombie does not live.
func Alive(pid, start uint64) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || pid == 0 {
		return false
	}
	// The name, field 2, stands in parentheses and may contain anything.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	return len(fields) > 19 && fields[0] != "Z" && fields[19] == strconv.FormatUint(start, 10)
}
