package bundle

import (
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Session is all that differs between the bundles of two sessions. Every value
// comes from the registry or was made by the broker; of what the client said,
// only what PiCommand has checked reaches it, as Command.
type Session struct {
	ID wire.SessionID
	// Rootfs is the host path of the root file system.
	Rootfs  string
	Command []string
	Env     []string
	UID     uint32
	GID     uint32
	// Workspace is the path of the pinned workspace; ReadOnly says how it is
	// mounted.
	Workspace string
	ReadOnly  bool
	// StateDir is the host folder that becomes /home/agent, writable.
	StateDir string
	// AttachmentsDir is the host folder that becomes /attachments, read-only;
	// empty means none.
	AttachmentsDir string
	// CgroupPath is the path of the cgroup in its hierarchies; empty leaves
	// the sandbox in the cgroup of the broker, without limits.
	CgroupPath string
	Limits     Limits
	Hostname   string
}

// Limits are what a session may use. Zero means no limit.
type Limits struct {
	// MemoryBytes bounds the sandbox with everything in it, in bytes.
	MemoryBytes int64
	// CPUs is how many CPUs' time it gets; 0.5 is half of one.
	CPUs float64
	// PIDs bounds the host's threads of the sandbox.
	PIDs int64
	// OpenFiles is RLIMIT_NOFILE inside the sandbox.
	OpenFiles uint64
	// TmpBytes is the size of /tmp, in bytes.
	TmpBytes int64
}

// Build returns the configuration.
func Build(s Session) *specs.Spec { panic("stub") }

// Write writes the configuration as dir/config.json, mode 0600. It refuses to
// replace one.
func Write(dir string, s *specs.Spec) error { panic("stub") }

// PiCommand returns the arguments that start Pi: each may be empty. It returns
// an error of code invalid_argument or invalid_attachment for a value that
// could be taken for something else.
func PiCommand(session, model, thinking string, extensions []string) ([]string, error) {
	panic("stub")
}

// PiEnv returns the whole environment of Pi.
func PiEnv() []string { panic("stub") }
