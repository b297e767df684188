package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// The checks of the host. Each tries the real thing.

func lacking(what, advice string, err error) error {
	return &wire.Error{Code: wire.CodeRuntimeFailed, Message: what, Advice: advice, Err: err}
}

func lookRoot(context.Context, *patient) (string, error) {
	if os.Geteuid() != 0 {
		return "", &wire.Error{Code: wire.CodeRootRequired, Message: "this is not root", Advice: "run it with sudo; without root most checks fail"}
	}
	return "yes", nil
}

func lookKernel(context.Context, *patient) (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", err
	}
	release := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil || major < 5 || major == 5 && minor < 6 {
		return "", lacking("Linux "+release+" is older than 5.6", "use a newer kernel", err)
	}
	return "Linux " + release, nil
}

func lookOpenat2(context.Context, *patient) (string, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return "", lacking("openat2 does not work", "use Linux 5.6 or newer, outside of containers that filter system calls", err)
	}
	return "openat2 works", unix.Close(fd)
}

func lookOpenTree(context.Context, *patient) (string, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return "", lacking("open_tree can't clone a mount", "run as root with CAP_SYS_ADMIN, on Linux 5.2 or newer", err)
	}
	return "open_tree works", unix.Close(fd)
}

func lookNamespaces(context.Context, *patient) (string, error) {
	for _, name := range []string{"mnt", "net", "pid", "ipc", "uts", "user"} {
		if _, err := os.Stat("/proc/self/ns/" + name); err != nil {
			return "", lacking("the kernel has no "+name+" namespaces", "use a kernel that has them", err)
		}
		limit, err := os.ReadFile("/proc/sys/user/max_" + name + "_namespaces")
		if err == nil && strings.TrimSpace(string(limit)) == "0" {
			return "", lacking("new "+name+" namespaces are forbidden", "raise the sysctl user.max_"+name+"_namespaces", nil)
		}
	}
	return "mnt, net, pid, ipc, uts, user", nil
}

func lookPidfd(context.Context, *patient) (string, error) {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return "", lacking("pidfd_open does not work", "use Linux 5.3 or newer", err)
	}
	return "pidfd_open works", unix.Close(fd)
}

func lookMemfd(context.Context, *patient) (string, error) {
	fd, err := unix.MemfdCreate("doctor", unix.MFD_CLOEXEC)
	if err != nil {
		return "", lacking("memfd_create does not work", "use a kernel with memory files; runsc needs them", err)
	}
	return "memfd_create works", unix.Close(fd)
}

// lookSpool punches a hole into a file on the spool's file system.
func lookSpool(_ context.Context, p *patient) (string, error) {
	dir := p.layout.Spools()
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return "", lacking(dir+" can't hold a file", "start the broker, which makes the folder, and put it on ext4, xfs or btrfs", err)
	}
	defer unix.Close(fd)
	const page = 4096
	if _, err := unix.Pwrite(fd, make([]byte, 4*page), 0); err != nil {
		return "", lacking("a file in "+dir+" can't be written", "make room", err)
	}
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, page, page); err != nil {
		return "", lacking("the file system of "+dir+" can't free parts of a file", "put it on ext4, xfs or btrfs", err)
	}
	return "its file system punches holes", nil
}

// minFree is what the state's disk should have at least, in bytes.
const minFree = 1 << 30

func lookDisk(_ context.Context, p *patient) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(p.layout.Var, &st); err != nil {
		return "", lacking(p.layout.Var+" can't be examined", "start the broker, which makes the folder", err)
	}
	free := st.Bavail * uint64(st.Bsize)
	if free < minFree {
		return "", lacking(fmt.Sprintf("%s has %d MiB free", p.layout.Var, free>>20), "make room: sessions stop reading their agents' output when it is full", nil)
	}
	return fmt.Sprintf("%d GiB free", free>>30) + p.spooled(), nil
}

// spooled says what the output of all sessions may come to take there.
func (p *patient) spooled() string {
	if p.config == nil {
		return ""
	}
	var sum registry.Size
	for _, d := range p.config.Deployments {
		most := mostSpooled(d.MaxSessions, d.Profiles)
		if d.SpoolTotal > 0 {
			most = min(most, d.SpoolTotal)
		}
		sum += most
	}
	return fmt.Sprintf("; the spools of all sessions may take %s", size(sum))
}
