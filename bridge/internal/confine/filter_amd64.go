package confine

import "golang.org/x/sys/unix"

const (
	auditArch = unix.AUDIT_ARCH_X86_64
	// otherABI is the first number of the x32 system calls.
	otherABI = 0x40000000
)

var forbidden = []uint32{unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_FORK, unix.SYS_VFORK}
