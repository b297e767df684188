package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// makeFiles plays games in a writable folder, args[0], that aim at a file of
// the host, args[1], which does not exist inside.
func makeFiles(args []string) answers {
	dir, secret := args[0], args[1]
	a := answers{}
	// Ways to a path of the host.
	up := strings.Repeat("../", 40)
	for name, path := range map[string]string{
		"plainly":              secret,
		"by many ..":           dir + "/" + up + secret,
		"by /proc/self/root":   "/proc/self/root" + secret,
		"by /proc/1/root":      "/proc/1/root" + secret,
		"by /proc/self/cwd":    "/proc/self/cwd/" + up + secret,
		"by a descriptor's ..": "/proc/self/fd/0/" + up + secret,
	} {
		_, err := os.ReadFile(path)
		a["read "+name] = outcome(err)
		link := filepath.Join(dir, "link "+strings.ReplaceAll(name, "/", "-"))
		if err := os.Symlink(path, link); err != nil {
			a["link "+name] = outcome(err)
			continue
		}
		_, err = os.ReadFile(link)
		a["read through a link "+name] = outcome(err)
		a["write through a link "+name] = outcome(os.WriteFile(link, []byte("x"), 0o644))
	}
	a["hard link to the host's"] = outcome(os.Link(secret, dir+"/hard"))
	a["hard link to the root's"] = outcome(os.Link("/etc/passwd", dir+"/hard"))
	file := filepath.Join(dir, "file")
	a["file"] = outcome(os.WriteFile(file, []byte("#!/bin/sh\nid -u\n"), 0o755))
	a["rename out"] = outcome(os.Rename(file, "/etc/file"))
	a["exchange with root's"] = outcome(unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, "/etc/passwd", unix.RENAME_EXCHANGE))
	a["give away"] = outcome(os.Lchown(file, 0, 0))
	a["setuid"] = outcome(unix.Chmod(file, 0o6755))
	out, err := exec.Command(file).Output()
	a["run setuid"] = outcome(err) + " " + strings.TrimSpace(string(out))
	a["fifo"] = outcome(unix.Mkfifo(dir+"/fifo", 0o666))
	a["character device"] = outcome(unix.Mknod(dir+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	a["overlay's whiteout"] = outcome(unix.Mknod(dir+"/whiteout", unix.S_IFCHR, 0))
	a["block device"] = outcome(unix.Mknod(dir+"/disk", unix.S_IFBLK|0o666, int(unix.Mkdev(8, 0))))
	a["socket"] = outcome(bind(dir + "/socket"))
	a["file capability"] = outcome(unix.Setxattr(file, "security.capability", make([]byte, 20), 0))
	a["trusted attribute"] = outcome(unix.Setxattr(file, "trusted.x", []byte("x"), 0))
	a["nameless file"] = outcome(nameless(dir, "/etc/nameless"))
	return a
}

func bind(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Bind(fd, &unix.SockaddrUnix{Name: path})
}

// nameless makes a file without a name and gives it one outside.
func nameless(dir, path string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Linkat(fd, "", unix.AT_FDCWD, path, unix.AT_EMPTY_PATH)
}
