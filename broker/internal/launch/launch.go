package launch

import "git.jb.codes/jb/paseo-sandbox/broker/internal/process"

// Options describe one bridge. All descriptors stay the caller's.
type Options struct {
	// Executable is the open, checked, root-owned binary.
	Executable int
	// UID and GID are what it runs as; neither may be 0.
	UID, GID uint32
	// Socket becomes the bridge's descriptor 3.
	Socket int
	// Log becomes its standard error.
	Log int
}

// Start starts the bridge.
func Start(o Options) (*process.Process, error) { panic("stub") }
