package launch

import "git.jb.codes/jb/paseo-sandbox/shared/seccomp"

// started is what a Go program of this architecture does at its start alone.
var started []seccomp.Rule
