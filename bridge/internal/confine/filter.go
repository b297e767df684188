package confine

import (
	"os"

	"git.jb.codes/jb/paseo-sandbox/shared/seccomp"
	"golang.org/x/sys/unix"
)

// filter is all that a running bridge asks the kernel for: what its runtime
// does, files and pipes and sockets that are open, and new connections of its
// listener. Anything else is the end of the process: it was taken over.
//
// A bridge is replaced once it is seen to be dead, and its user is given to a
// later session's bridge: a child of one that was taken over would go on with
// its descriptors, and could meet that later one.
func filter() seccomp.Filter {
	rules := append(seccomp.Runtime(), seccomp.Signals(os.Getpid()))
	rules = append(rules, seccomp.Rules(seccomp.Allow,
		unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_LSEEK, unix.SYS_SPLICE, unix.SYS_FTRUNCATE, unix.SYS_FDATASYNC,
		unix.SYS_ACCEPT4, unix.SYS_RECVMSG, unix.SYS_SENDMSG, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME,
	)...)
	rules = append(rules, only(unix.SYS_FALLOCATE, 1, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE)...)
	rules = append(rules, only(unix.SYS_IOCTL, 1, unix.TIOCINQ)...)
	rules = append(rules, only(unix.SYS_FCNTL, 1, unix.F_GETFL, unix.F_SETFL, unix.F_GETFD, unix.F_SETFD, unix.F_DUPFD_CLOEXEC, unix.F_SETPIPE_SZ)...)
	rules = append(rules, only(unix.SYS_GETSOCKOPT, 1, unix.SOL_SOCKET)...)
	rules = append(rules, seccomp.Rule{Number: unix.SYS_SETSOCKOPT, Action: seccomp.Allow, When: []seccomp.Arg{
		{Index: 1, Value: unix.SOL_SOCKET}, {Index: 2, Value: unix.SO_SNDBUF},
	}})
	return seccomp.Filter{Rules: rules, Default: seccomp.Kill}
}

// only allows a call whose argument at index is one of the values.
func only(number uintptr, index int, values ...uint64) []seccomp.Rule {
	var rules []seccomp.Rule
	for _, v := range values {
		rules = append(rules, seccomp.Rule{Number: number, Action: seccomp.Allow, When: []seccomp.Arg{{Index: index, Value: v}}})
	}
	return rules
}
