package confine

import "golang.org/x/sys/unix"

const (
	auditArch = unix.AUDIT_ARCH_AARCH64
	otherABI  = 0 // there is none
)

var forbidden = []uint32{unix.SYS_EXECVE, unix.SYS_EXECVEAT}
