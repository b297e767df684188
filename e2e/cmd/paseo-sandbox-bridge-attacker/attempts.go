package main

import (
	"sort"

	"golang.org/x/sys/unix"
)

// attempt is one thing to try. Without a fence each is done, or fails because
// its arguments are meant to be harmless, which is another error than a fence's.
type attempt struct {
	name string
	try  func() error
}

func attempts(t targets) []attempt {
	all := []attempt{
		{"fork", func() error { return clone(uintptr(unix.SIGCHLD)) }},
		{"fork into a user namespace", func() error { return clone(uintptr(unix.SIGCHLD) | unix.CLONE_NEWUSER) }},
		{"execute", func() error { return unix.Exec(t.Program, []string{"program"}, nil) }},
		{"execute a descriptor", func() error { return call(unix.SYS_EXECVEAT, ^uintptr(0), 0, 0, 0, unix.AT_EMPTY_PATH) }},
		{"unshare", func() error { return call(unix.SYS_UNSHARE) }},
		{"setns", func() error { return call(unix.SYS_SETNS, ^uintptr(0)) }},
		{"chroot", func() error { return call(unix.SYS_CHROOT, 1) }},
		{"mount", func() error { return call(unix.SYS_MOUNT, 1, 1, 1) }},
		{"open_tree", func() error { return call(unix.SYS_OPEN_TREE, ^uintptr(0), 1) }},
		{"bpf", func() error { return call(unix.SYS_BPF, 9999, 1, 1) }},
		{"userfaultfd", func() error { return call(unix.SYS_USERFAULTFD, 0xffff) }},
		{"io_uring_setup", func() error { return call(unix.SYS_IO_URING_SETUP, 1, 1) }},
		{"keyctl", func() error { return call(unix.SYS_KEYCTL, 9999) }},
		{"perf_event_open", func() error { return call(unix.SYS_PERF_EVENT_OPEN, 1) }},
		{"shared memory", func() error { return call(unix.SYS_SHMGET, 0, 0) }},
		{"memory file", func() error { return call(unix.SYS_MEMFD_CREATE, 1) }},
		{"memory to execute", func() error {
			_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_ANON|unix.MAP_PRIVATE)
			return err
		}},
		{"make memory executable", func() error { return call(unix.SYS_MPROTECT) }},
		{"become root", func() error { return call(unix.SYS_SETRESUID) }},
		{"take a group", func() error { return call(unix.SYS_SETRESGID) }},
		{"drop groups", func() error { return call(unix.SYS_SETGROUPS) }},
		{"become traceable", func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) }},
		{"read limits", func() error { return call(unix.SYS_PRLIMIT64) }},
		{"chown its own file", func() error { return call(unix.SYS_FCHOWN, ^uintptr(0)) }},
		{"link", func() error { return call(unix.SYS_LINKAT, ^uintptr(0), 1, 0, 1) }},
		{"push into a terminal", func() error { return call(unix.SYS_IOCTL, ^uintptr(0), unix.TIOCSTI) }},
		{"pair of sockets", func() error { _, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0); return err }},
		{"inet socket", func() error { return dial(unix.AF_INET, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}}) }},
		{"netlink socket", func() error { return dial(unix.AF_NETLINK, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) }},
		{"connect to an abstract name", func() error { return dial(unix.AF_UNIX, &unix.SockaddrUnix{Name: "@" + t.Abstract}) }},
	}
	for what, path := range t.Files {
		all = append(all, attempt{"open " + what, func() error { return open(path) }},
			attempt{"hold " + what, func() error { _, err := unix.Open(path, unix.O_PATH, 0); return err }},
			attempt{"look at " + what, func() error { var st unix.Stat_t; return unix.Stat(path, &st) }})
	}
	for what, path := range t.Sockets {
		all = append(all, attempt{"connect to " + what, func() error { return dial(unix.AF_UNIX, &unix.SockaddrUnix{Name: path}) }})
	}
	for what, pid := range t.Processes {
		p := uintptr(pid)
		all = append(all,
			attempt{"signal " + what, func() error { return unix.Kill(pid, 0) }},
			attempt{"signal a thread of " + what, func() error { return unix.Tgkill(pid, pid, 0) }},
			attempt{"hold " + what, func() error { return call(unix.SYS_PIDFD_OPEN, p) }},
			attempt{"trace " + what, func() error { return call(unix.SYS_PTRACE, unix.PTRACE_SEIZE, p) }},
			attempt{"read the memory of " + what, func() error { return call(unix.SYS_PROCESS_VM_READV, p) }})
	}
	sort.Slice(all, func(i, j int) bool { return all[i].name < all[j].name })
	return all
}

func open(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func dial(family int, to unix.Sockaddr) error {
	kind := unix.SOCK_STREAM
	if family == unix.AF_NETLINK {
		kind = unix.SOCK_RAW
	}
	fd, err := unix.Socket(family, kind, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, to)
}

// call makes a system call whose arguments do no harm.
func call(number uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}

// clone makes a child that ends at once.
func clone(flags uintptr) error {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, flags, 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	var status unix.WaitStatus
	_, err := unix.Wait4(int(pid), &status, 0, nil)
	return err
}
