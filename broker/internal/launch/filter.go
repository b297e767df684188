package launch

import (
	"git.jb.codes/jb/paseo-sandbox/shared/seccomp"
	"golang.org/x/sys/unix"
)

// filter is what a program of ours may ask the kernel for in all its life: its
// start, and what a bridge does. It can make threads and no process. A program
// takes a narrower one upon itself once it runs.
func filter() seccomp.Filter {
	rules := append(seccomp.Runtime(), started...)
	rules = append(rules, seccomp.Rules(seccomp.Allow,
		// Its start, and what it takes upon itself.
		unix.SYS_EXECVE, unix.SYS_SECCOMP, unix.SYS_CAPGET, unix.SYS_GETRESUID, unix.SYS_TGKILL,
		// Files and pipes that are open.
		unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_LSEEK, unix.SYS_SPLICE,
		unix.SYS_FALLOCATE, unix.SYS_FTRUNCATE, unix.SYS_FDATASYNC, unix.SYS_FCNTL,
		// Sockets that are open.
		unix.SYS_ACCEPT4, unix.SYS_RECVMSG, unix.SYS_SENDMSG,
		unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT,
	)...)
	rules = append(rules,
		seccomp.Rule{Number: unix.SYS_IOCTL, Action: seccomp.Allow, When: []seccomp.Arg{{Index: 1, Value: unix.TIOCINQ}}},
		seccomp.Rule{Number: unix.SYS_PRCTL, Action: seccomp.Allow, When: []seccomp.Arg{{Index: 0, Value: unix.PR_SET_NO_NEW_PRIVS}}},
		seccomp.Rule{Number: unix.SYS_PRCTL, Action: seccomp.Allow, When: []seccomp.Arg{{Index: 0, Value: unix.PR_SET_DUMPABLE}, {Index: 1, Value: 0}}},
	)
	return seccomp.Filter{Rules: rules, Default: seccomp.Fail(unix.EPERM)}
}
