package launch

import (
	"git.jb.codes/jb/paseo-sandbox/shared/seccomp"
	"golang.org/x/sys/unix"
)

// started is what a Go program of this architecture does at its start alone.
var started = seccomp.Rules(seccomp.Allow, unix.SYS_ARCH_PRCTL)
