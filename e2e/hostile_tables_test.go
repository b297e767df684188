package e2e

// The environment that a session has, and nothing else.
const sandboxEnvironment = `HOME=/home/agent
LANG=C.UTF-8
PATH=/usr/local/bin:/usr/bin:/bin
PI_CODING_AGENT_DIR=/home/agent/.pi/agent
PI_CODING_AGENT_SESSION_DIR=/home/agent/.pi/sessions
PI_OFFLINE=1
TMPDIR=/home/agent/tmp`

// The mounts: root, place, options, kind, source. gVisor enforces nodev
// without showing it.
const sandboxMounts = `/ / ro 9p none
/ /dev rw,nosuid,noexec dev none
/ /dev/pts rw devpts none
/ /home/agent rw,nosuid 9p none
/ /proc rw,nosuid,noexec proc none
/ /run rw,nosuid tmpfs none
/ /sys ro,nosuid,noexec sysfs none
/ /tmp rw,nosuid tmpfs none
/ /workspace rw,nosuid 9p none`

// The devices: path, mode, number. All are gVisor's own. fuse and tun need a
// capability to be of use; gVisor can't leave them out.
const sandboxDevices = `/dev/full 20666 1:7
/dev/fuse 20666 10:229
/dev/net/tun 20666 10:200
/dev/null 20666 1:3
/dev/pts/ptmx 20666 5:2
/dev/random 20666 1:8
/dev/tty 20666 5:0
/dev/urandom 20666 1:9
/dev/zero 20666 1:5`

const noCapability = "0000000000000000"

func factsTable() map[string]string {
	return merge(same(noCapability, "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), map[string]string{
		"descriptors": "0 1 2", "environment": sandboxEnvironment, "environment of pid 1": sandboxEnvironment,
		"NoNewPrivs": "1", "Seccomp": "2", "ids": "1000 1000 1000 1000 []",
		"processes": "1 ", "mounts": sandboxMounts, "devices": sandboxDevices, "unix sockets": "0",
		"hostname": "sandbox", "kernel": "4.19.0-gvisor", "interfaces": "lo ",
		"proc": "bus cgroups cmdline cpuinfo devices filesystems fs gvisor irq loadavg meminfo modules mounts net self " +
			"sentry-meminfo stat sys sysrq-trigger thread-self uptime version ",
	})
}

func callsTable() map[string]string {
	return merge(
		same("EPERM",
			"mount tmpfs", "mount proc", "mount bind", "mount shared", "remount root", "remount suid", "umount", "pivot_root",
			"chroot", "open_tree", "fsopen", "mknod character", "mknod block", "open_by_handle", "quotactl",
			"clone user", "clone user, net", "clone mount", "clone pid", "clone net", "clone ipc", "clone uts",
			"unshare user", "unshare files", "setns", "setuid", "setgid", "setgroups", "capset", "ambient",
			"ptrace", "ptrace me", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "raise the hard limit",
			"init_module", "finit_module", "delete_module", "bpf", "kexec_load", "kexec_file_load", "reboot", "swapon", "acct",
			"syslog", "clock_settime", "settimeofday", "adjtimex", "sethostname", "perf_event_open", "userfaultfd", "io_uring",
			"keyctl", "add_key", "fanotify", "raw socket", "raw IPv6 socket", "packet socket"),
		same("EACCES", "sysrq", "sysctl hostname", "sysctl forwarding", "own program"),
		same("EAFNOSUPPORT", "vsock", "crypto socket"),
		same("EPROTONOSUPPORT", "audit netlink", "filter netlink"),
		map[string]string{
			// glibc then takes clone, whose flags can be looked at.
			"clone3": "ENOSYS", "x32 unshare": "ENOSYS", "no_new_privs": "EINVAL", "TIOCSTI": "ENOTTY",
			// There is nobody but the probe.
			"kill everything": "ESRCH",
			// Harmless: a number that only gVisor knows, a program of its own, the
			// interfaces of its own network.
			"lower oom score": "ok", "memory descriptor": "ok", "route netlink": "ok",
			"unshare program": "failed: unshare: unshare failed: Operation not permitted",
			"threads program": "worker",
		},
	)
}

// waysToTheHost are the probe's ways to a path that exists on the host only.
var waysToTheHost = []string{"plainly", "by many ..", "by /proc/self/root", "by /proc/1/root", "by /proc/self/cwd"}

func filesTable() map[string]string {
	table := map[string]string{
		"read by a descriptor's ..": "ENOTDIR", "read through a link by a descriptor's ..": "ENOTDIR",
		"write through a link by a descriptor's ..": "ENOTDIR",
		"hard link to the host's":                   "ENOENT", "hard link to the root's": "EXDEV",
		"rename out": "EXDEV", "exchange with root's": "EXDEV",
		"file": "ok", "give away": "EPERM",
		// It is the workspace owner's, inside and on the host, and never root's.
		"setuid": "ok", "run setuid": "ok 1000",
		// They exist inside only.
		"fifo": "ok", "socket": "ok",
		"character device": "EPERM", "overlay's whiteout": "EPERM", "block device": "EPERM",
		"file capability": "ENOTSUP", "trusted attribute": "ENOTSUP", "nameless file": "ENOTSUP",
	}
	for _, way := range waysToTheHost {
		for _, what := range []string{"read ", "read through a link ", "write through a link "} {
			table[what+way] = "ENOENT"
		}
	}
	return table
}
