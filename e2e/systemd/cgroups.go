package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// makeGroups makes a group of this name in each hierarchy of the host, v1 and
// v2. They are the roots of the machine's own.
func makeGroups(name string) ([]string, error) {
	hierarchies, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var made []string
	for _, h := range hierarchies {
		dir := filepath.Join(h, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, errors.Join(err, removeGroups(made))
		}
		made = append(made, dir)
		// A v1 group without CPUs takes no process; a v2 group has what its
		// parent lets it have.
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			if b, err := os.ReadFile(filepath.Join(h, f)); err == nil {
				err = os.WriteFile(filepath.Join(dir, f), b, 0o644)
				if err != nil {
					return nil, errors.Join(err, removeGroups(made))
				}
			}
		}
		for _, c := range []string{"cpu", "memory", "pids"} {
			if control := filepath.Join(h, "cgroup.subtree_control"); exists(control) {
				// A hybrid's v2 has no controllers to give.
				_ = os.WriteFile(control, []byte("+"+c), 0o644)
			}
		}
	}
	return made, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// hierarchies returns where they are mounted (proc_pid_mountinfo(5)).
func hierarchies() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(b)) {
		before, after, _ := strings.Cut(line, " - ")
		place, kind := strings.Fields(before), strings.Fields(after)
		if len(place) > 4 && len(kind) > 0 && (kind[0] == "cgroup" || kind[0] == "cgroup2") {
			found = append(found, place[4])
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted")
	}
	return found, nil
}

// removeGroups removes groups with all below them. The last process of a
// machine may leave them a moment after it is gone.
func removeGroups(groups []string) error {
	var failed error
	for _, g := range groups {
		for deadline := time.Now().Add(stopTimeout); ; time.Sleep(pollInterval) {
			err := removeGroup(g)
			if err == nil {
				break
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				failed = errors.Join(failed, fmt.Errorf("remove a cgroup: %w", err))
				break
			}
		}
	}
	return failed
}

func removeGroup(dir string) error {
	var below []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && d.IsDir() {
			below = append(below, path)
		}
		return err
	})
	for i := len(below) - 1; i >= 0 && err == nil; i-- {
		if err = os.Remove(below[i]); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return err
}
