package bundle

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// seccomp is the filter that gVisor's kernel applies to the agent's system
// calls; runsc needs --oci-seccomp for it. It is a second fence behind the
// empty capability sets, and the only one around user namespaces: whoever may
// make one is root in it, with every capability over what it contains, and
// gVisor has no setting against them.
//
// runsc knows neither errnoRet nor SCMP_ACT_LOG: an error is always EPERM, and
// ENOSYS is only had from SCMP_ACT_TRACE without a tracer (seccomp(2)), so that
// ptrace must be refused. A name that runsc does not know is skipped: its call
// does not exist inside either.
func seccomp() *specs.LinuxSeccomp {
	return &specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow,
		Syscalls: []specs.LinuxSyscall{
			{Names: refusedCalls, Action: specs.ActErrno},
			// Several conditions on one argument: any of them is enough.
			{Names: []string{"clone"}, Action: specs.ActErrno, Args: namespaceFlags()},
			{Names: []string{"mknod"}, Action: specs.ActErrno, Args: deviceModes(1)},
			{Names: []string{"mknodat"}, Action: specs.ActErrno, Args: deviceModes(2)},
			// Its flags are in memory, where a filter can't look. glibc falls
			// back to clone when there is no clone3.
			{Names: []string{"clone3"}, Action: specs.ActTrace},
		},
	}
}

// refusedCalls are of no use to an agent, its tools and its compilers, and each
// is code of gVisor's kernel that an attacker could try.
var refusedCalls = []string{
	// Namespaces and mounts.
	"unshare", "setns", "chroot", "pivot_root", "mount", "umount2", "mount_setattr",
	"open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick",
	"name_to_handle_at", "open_by_handle_at", "quotactl", "quotactl_fd", "fanotify_init", "fanotify_mark",
	// Other processes' memory and descriptors.
	"ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp",
	// What has a history of holes, or is not gVisor's to grant.
	"bpf", "io_uring_setup", "io_uring_enter", "io_uring_register", "perf_event_open", "userfaultfd",
	"add_key", "request_key", "keyctl", "lookup_dcookie", "nfsservctl", "uselib", "ustat", "sysfs", "_sysctl",
	// The machine.
	"init_module", "finit_module", "delete_module", "create_module", "query_module", "get_kernel_syms",
	"kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff", "acct", "syslog", "vhangup",
	"iopl", "ioperm", "sethostname", "setdomainname",
	"settimeofday", "stime", "clock_settime", "clock_adjtime", "adjtimex",
}

// namespaceFlags match a clone that makes a namespace. gVisor lets a process
// without capabilities make a mount namespace, too.
func namespaceFlags() []specs.LinuxSeccompArg {
	var args []specs.LinuxSeccompArg
	for _, flag := range []uint64{
		unix.CLONE_NEWUSER, unix.CLONE_NEWNS, unix.CLONE_NEWPID, unix.CLONE_NEWNET,
		unix.CLONE_NEWIPC, unix.CLONE_NEWUTS, unix.CLONE_NEWCGROUP,
	} {
		args = append(args, specs.LinuxSeccompArg{Value: flag, ValueTwo: flag, Op: specs.OpMaskedEqual})
	}
	return args
}

// deviceModes match a mode, in the given argument, that makes a device. Linux
// lets everybody make the character device 0:0, overlayfs's whiteout, and it
// would lie in the workspace on the host.
func deviceModes(argument uint) []specs.LinuxSeccompArg {
	var args []specs.LinuxSeccompArg
	for _, kind := range []uint64{unix.S_IFCHR, unix.S_IFBLK} {
		args = append(args, specs.LinuxSeccompArg{Index: argument, Value: unix.S_IFMT, ValueTwo: kind, Op: specs.OpMaskedEqual})
	}
	return args
}
