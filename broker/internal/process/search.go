package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Words returns the command line of a process, as it tells it itself: at least
// one word, which is empty for a process that is dead, being executed, or of
// the kernel.
func Words(pid int) []string {
	b, err := os.ReadFile(procDir(pid) + "/cmdline")
	if err != nil {
		return []string{""}
	}
	return strings.Split(string(b), "\x00")
}

// Is reports whether the process that has this pid now fits, by its effective
// user (proc(5)) and its words.
func Is(pid int, fits func(uid uint32, words []string) bool) bool {
	info, err := os.Stat(procDir(pid))
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && fits(st.Uid, Words(pid))
}

// Search holds each process of the host that fits, but for ourselves. The
// caller closes them.
func Search(fits func(uid uint32, words []string) bool) ([]*Process, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, fmt.Errorf("search processes: %w", err)
	}
	var found []*Process
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() || !Is(pid, fits) {
			continue
		}
		p, err := Open(pid)
		if errors.Is(err, ErrGone) {
			continue
		}
		if err != nil {
			for _, p := range found {
				p.Close()
			}
			return nil, err
		}
		// Held now: had the pid been given to another, this would say so.
		if !Is(pid, fits) {
			p.Close()
			continue
		}
		found = append(found, p)
	}
	return found, nil
}

func procDir(pid int) string { return "/proc/" + strconv.Itoa(pid) }
