package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// calls tries system calls that an agent has no business with.
func calls([]string) answers {
	a := answers{}
	for _, group := range []map[string]func() error{mountCalls, namespaceCalls, identityCalls, processCalls, kernelCalls, socketCalls} {
		for name, try := range group {
			a[name] = outcome(try())
		}
	}
	a["unshare program"] = run("/usr/bin/unshare", "-Ur", "/usr/bin/id", "-u")
	a["threads program"] = run("/usr/local/bin/node", "-e", `new (require("worker_threads").Worker)("process.stdout.write('worker')", {eval: true})`)
	return a
}

// run returns what a program printed, or how it failed.
func run(name string, args ...string) string {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return "failed: " + strings.TrimSpace(string(out))
	}
	return strings.TrimSpace(string(out))
}

// raw makes a system call with numbers alone.
func raw(number uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	r, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno != 0 {
		return errno
	}
	if fd := int(r); fd > 2 {
		unix.Close(fd)
	}
	return nil
}

var mountCalls = map[string]func() error{
	"mount tmpfs":     func() error { return unix.Mount("x", "/tmp", "tmpfs", 0, "") },
	"mount proc":      func() error { return unix.Mount("x", "/tmp", "proc", 0, "") },
	"mount bind":      func() error { return unix.Mount("/workspace", "/tmp", "", unix.MS_BIND, "") },
	"mount shared":    func() error { return unix.Mount("", "/workspace", "", unix.MS_SHARED|unix.MS_REC, "") },
	"remount root":    func() error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") },
	"remount suid":    func() error { return unix.Mount("", "/workspace", "", unix.MS_REMOUNT|unix.MS_BIND, "") },
	"umount":          func() error { return unix.Unmount("/workspace", unix.MNT_DETACH) },
	"pivot_root":      func() error { return unix.PivotRoot("/tmp", "/tmp") },
	"chroot":          func() error { return unix.Chroot("/tmp") },
	"open_tree":       func() error { _, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE); return err },
	"fsopen":          func() error { _, err := unix.Fsopen("tmpfs", 0); return err },
	"mknod character": func() error { return unix.Mknod("/tmp/c", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 1))) },
	"mknod block":     func() error { return unix.Mknod("/tmp/b", unix.S_IFBLK|0o666, int(unix.Mkdev(8, 0))) },
	"open_by_handle":  func() error { _, err := unix.OpenByHandleAt(0, unix.NewFileHandle(1, make([]byte, 8)), 0); return err },
	"quotactl":        func() error { return raw(unix.SYS_QUOTACTL) },
}

// cloneWith starts a program in new namespaces.
func cloneWith(flags uintptr) func() error {
	return func() error {
		c := exec.Command("/bin/true")
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		return c.Run()
	}
}

var namespaceCalls = map[string]func() error{
	"clone user":      cloneWith(unix.CLONE_NEWUSER),
	"clone user, net": cloneWith(unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWNS),
	"clone mount":     cloneWith(unix.CLONE_NEWNS),
	"clone pid":       cloneWith(unix.CLONE_NEWPID),
	"clone net":       cloneWith(unix.CLONE_NEWNET),
	"clone ipc":       cloneWith(unix.CLONE_NEWIPC),
	"clone uts":       cloneWith(unix.CLONE_NEWUTS),
	"clone3":          func() error { return raw(unix.SYS_CLONE3, 0, 0) },
	"unshare user":    func() error { return raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER) },
	"unshare files":   func() error { return raw(unix.SYS_UNSHARE, unix.CLONE_FILES) },
	// Another ABI's number for the same call: a filter that knows numbers only
	// lets it through, so it must not exist.
	"x32 unshare": func() error { return raw(0x40000000|unix.SYS_UNSHARE, unix.CLONE_NEWUSER) },
	"setns": func() error {
		fd, err := unix.Open("/proc/self/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Setns(fd, 0)
	},
}

var identityCalls = map[string]func() error{
	"setuid":    func() error { return unix.Setresuid(0, 0, 0) },
	"setgid":    func() error { return unix.Setresgid(0, 0, 0) },
	"setgroups": func() error { return unix.Setgroups([]int{0}) },
	"capset": func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		all := [2]unix.CapUserData{{Effective: ^uint32(0), Permitted: ^uint32(0)}, {}}
		return unix.Capset(&header, &all[0])
	},
	"ambient": func() error {
		return unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_SYS_ADMIN, 0, 0)
	},
	"no_new_privs": func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) },
}

var processCalls = map[string]func() error{
	"ptrace":            func() error { return unix.PtraceAttach(1) },
	"ptrace me":         func() error { return raw(unix.SYS_PTRACE, unix.PTRACE_TRACEME) },
	"process_vm_readv":  func() error { return raw(unix.SYS_PROCESS_VM_READV, 1) },
	"process_vm_writev": func() error { return raw(unix.SYS_PROCESS_VM_WRITEV, 1) },
	"pidfd_getfd":       func() error { return raw(unix.SYS_PIDFD_GETFD, 0, 0, 0) },
	"kcmp":              func() error { return raw(unix.SYS_KCMP, 1, 1, 0, 0, 0) },
	"kill everything":   func() error { return unix.Kill(-1, 0) },
	"lower oom score":   func() error { return os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0) },
	"own program":       func() error { return os.WriteFile("/proc/self/exe", []byte("x"), 0) },
	"memory descriptor": execMemory,
	"TIOCSTI":           func() error { c := byte('x'); return raw(unix.SYS_IOCTL, 0, unix.TIOCSTI, uintptr(unsafe.Pointer(&c))) },
	"raise the hard limit": func() error {
		return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20})
	},
}

// execMemory runs a copy of /bin/true that has no name.
func execMemory() error {
	fd, err := unix.MemfdCreate("true", 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "true")
	defer f.Close()
	b, err := os.ReadFile("/bin/true")
	if err != nil {
		return err
	}
	if _, err := f.Write(b); err != nil {
		return err
	}
	c := exec.Command("/proc/self/fd/3")
	c.ExtraFiles = []*os.File{f}
	return c.Run()
}

var kernelCalls = map[string]func() error{
	"init_module":     func() error { return raw(unix.SYS_INIT_MODULE) },
	"finit_module":    func() error { return raw(unix.SYS_FINIT_MODULE) },
	"delete_module":   func() error { return raw(unix.SYS_DELETE_MODULE) },
	"bpf":             func() error { return raw(unix.SYS_BPF) },
	"kexec_load":      func() error { return raw(unix.SYS_KEXEC_LOAD) },
	"kexec_file_load": func() error { return raw(unix.SYS_KEXEC_FILE_LOAD) },
	"reboot":          func() error { return unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) },
	"swapon":          func() error { return raw(unix.SYS_SWAPON) },
	"acct":            func() error { return unix.Acct("/tmp/acct") },
	"syslog":          func() error { _, err := unix.Klogctl(unix.SYSLOG_ACTION_SIZE_BUFFER, nil); return err },
	"clock_settime":   func() error { return unix.ClockSettime(unix.CLOCK_REALTIME, &unix.Timespec{Sec: 1}) },
	"settimeofday":    func() error { return unix.Settimeofday(&unix.Timeval{Sec: 1}) },
	"adjtimex":        func() error { _, err := unix.Adjtimex(&unix.Timex{}); return err },
	"sethostname":     func() error { return unix.Sethostname([]byte("x")) },
	"perf_event_open": func() error { _, err := unix.PerfEventOpen(&unix.PerfEventAttr{}, 0, -1, -1, 0); return err },
	"userfaultfd":     func() error { return raw(unix.SYS_USERFAULTFD) },
	"io_uring":        func() error { return raw(unix.SYS_IO_URING_SETUP, 1, 0) },
	"keyctl":          func() error { _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, true); return err },
	"add_key": func() error {
		_, err := unix.AddKey("user", "x", []byte("x"), unix.KEY_SPEC_SESSION_KEYRING)
		return err
	},
	"fanotify":          func() error { _, err := unix.FanotifyInit(0, 0); return err },
	"sysrq":             func() error { return os.WriteFile("/proc/sysrq-trigger", []byte("h"), 0) },
	"sysctl hostname":   func() error { return os.WriteFile("/proc/sys/kernel/hostname", []byte("x"), 0) },
	"sysctl forwarding": func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) },
}

func socket(domain, kind, protocol int) func() error {
	return func() error {
		fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, protocol)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
}

var socketCalls = map[string]func() error{
	"raw socket":      socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP),
	"raw IPv6 socket": socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6),
	"packet socket":   socket(unix.AF_PACKET, unix.SOCK_RAW, 0x0300),
	"vsock":           socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0),
	"crypto socket":   socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0),
	"audit netlink":   socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT),
	"filter netlink":  socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER),
	"route netlink":   socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE),
}
