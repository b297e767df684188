package main

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

var started string // the descriptors at the start

// descriptors lists the open ones without opening more than one.
func descriptors() string {
	fd, err := unix.Open("/proc/self/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err.Error()
	}
	defer unix.Close(fd)
	var all []string
	buf := make([]byte, 1<<16)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil || n <= 0 {
			break
		}
		_, _, all = unix.ParseDirent(buf[:n], -1, all)
	}
	all = slices.DeleteFunc(all, func(s string) bool { return s == strconv.Itoa(fd) })
	slices.Sort(all)
	return strings.Join(all, " ")
}

// facts tells what can be seen without trying anything.
func facts([]string) answers {
	a := answers{"descriptors": started}
	environ := os.Environ()
	slices.Sort(environ)
	a["environment"] = strings.Join(environ, "\n")
	initial, _ := os.ReadFile("/proc/1/environ")
	first := strings.Split(strings.TrimRight(string(initial), "\x00"), "\x00")
	slices.Sort(first)
	a["environment of pid 1"] = strings.Join(first, "\n")
	status, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(status), "\n") {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp":
			a[name] = strings.TrimSpace(value)
		}
	}
	groups, _ := os.Getgroups()
	a["ids"] = fmt.Sprint(os.Getuid(), os.Geteuid(), os.Getgid(), os.Getegid(), groups)
	a["processes"], a["proc"] = processes()
	a["mounts"] = mounts()
	a["devices"] = devices()
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		a["hostname"] = unix.ByteSliceToString(uts.Nodename[:])
		a["kernel"] = unix.ByteSliceToString(uts.Release[:])
	}
	interfaces, _ := net.Interfaces()
	for _, i := range interfaces {
		a["interfaces"] += i.Name + " "
	}
	abstract, _ := os.ReadFile("/proc/net/unix")
	a["unix sockets"] = strconv.Itoa(strings.Count(strings.TrimSpace(string(abstract)), "\n"))
	return a
}

// processes returns the pids that /proc shows, and its other names.
func processes() (pids, others string) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			pids += e.Name() + " "
		} else {
			others += e.Name() + " "
		}
	}
	return pids, others
}

// mounts returns a line for each: its place, options, kind, source
// (proc_pid_mountinfo(5)).
func mounts() string {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	var all []string
	for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		left, right, _ := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if len(l) < 6 || len(r) < 2 {
			all = append(all, line)
			continue
		}
		all = append(all, strings.Join([]string{l[3], l[4], l[5], r[0], r[1]}, " "))
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// devices returns each file of /dev with its kind and number.
func devices() string {
	var all []string
	_ = filepath.WalkDir("/dev", func(path string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err != nil || unix.Lstat(path, &st) != nil {
			return nil
		}
		if kind := st.Mode & unix.S_IFMT; kind == unix.S_IFCHR || kind == unix.S_IFBLK || kind == unix.S_IFREG {
			all = append(all, fmt.Sprintf("%s %o %d:%d", path, st.Mode, unix.Major(st.Rdev), unix.Minor(st.Rdev)))
		}
		return nil
	})
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// maxSearched bounds what is read of one file, in bytes.
const maxSearched = 1 << 20

// search looks for words in all that /proc and /sys let it read, and in the
// targets of their links.
func search(words []string) answers {
	a := answers{"files": "0"}
	files := 0
	for _, root := range []string{"/proc", "/sys"} {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Base(path) == "mem" {
				return nil
			}
			text, _ := os.Readlink(path)
			if d.Type().IsRegular() {
				text += head(path)
			}
			files++
			for _, w := range words {
				if strings.Contains(text, w) {
					a[path] = w
				}
			}
			return nil
		})
	}
	a["files"] = strconv.Itoa(files)
	return a
}

func head(path string) string {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	b := make([]byte, maxSearched)
	n, _ := unix.Read(fd, b)
	return string(b[:max(n, 0)])
}

// walk tells of each file, but those below the given folders, its kind, mode,
// owner and group.
func walk(skip []string) answers {
	a := answers{}
	_ = filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		if slices.Contains(skip, path) {
			return fs.SkipDir
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			a[path] = outcome(err)
			return nil
		}
		if err != nil {
			a[path] = outcome(err)
			return nil
		}
		kind := map[uint32]string{
			unix.S_IFDIR: "d", unix.S_IFREG: "f", unix.S_IFLNK: "l",
			unix.S_IFCHR: "c", unix.S_IFBLK: "b", unix.S_IFIFO: "p", unix.S_IFSOCK: "s",
		}[st.Mode&unix.S_IFMT]
		a[path] = fmt.Sprintf("%s %04o %d %d", kind, st.Mode&0o7777, st.Uid, st.Gid)
		return nil
	})
	return a
}
