package runsc

import (
	"context"
	"errors"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// ErrNotFound is returned for a container that runsc does not know.
var ErrNotFound = errors.New("runsc knows no such container")

// Options say which runsc to use and where it keeps its state.
type Options struct {
	// Executable is the open binary, checked before. It stays the caller's
	// and must stay open until Close.
	Executable int
	// Root is runsc's --root, a root-owned folder of mode 0700 on tmpfs.
	Root string
	// LogDir gets one log file for each container, ID.log.
	LogDir string
	// Cgroups says whether runsc makes the cgroups that the bundles name.
	Cgroups bool
}

// Runtime runs runsc. It is safe for concurrent use.
type Runtime struct{ o Options }

// State is what runsc knows of a container.
type State struct {
	// Status is creating, created, running or stopped.
	Status string
	// PID is that of the sandbox's process on the host; 0 when stopped.
	PID int
}

// Open checks the folders.
func Open(o Options) (*Runtime, error) { panic("stub") }

// Streams are the descriptors of one container. All stay the caller's.
type Streams struct {
	// Stdin, Stdout and Stderr become the container's standard streams.
	Stdin, Stdout, Stderr int
	// Exit is the write end of the pipe that gets the exit status: one line
	// {"id":ID,"exitStatus":N}, N being 128+n after signal n, and nothing when
	// the sandbox itself was killed. Its end of file says that the sandbox is
	// gone.
	Exit int
}

// Create makes the container from the bundle. It returns the pid of the
// sandbox and the container's reaper: a process without privileges that is the
// parent of the sandbox, holds the write end of the exit pipe until the sandbox
// ends, and goes on when the broker dies. There is no separate wait: "runsc
// wait" loses the status of a container that is not started yet. The error
// carries what runsc said; then Delete removes what was half made.
func (r *Runtime) Create(ctx context.Context, id wire.SessionID, bundleDir string, s Streams) (sandboxPID int, reaper *process.Process, err error) {
	panic("stub")
}

// Start starts the container's first process.
func (r *Runtime) Start(ctx context.Context, id wire.SessionID) error { panic("stub") }

// State asks for a container's state. It returns ErrNotFound for an unknown one.
func (r *Runtime) State(ctx context.Context, id wire.SessionID) (State, error) { panic("stub") }

// Signal sends a signal, named without SIG, to the container's first process.
// It returns ErrNotFound for an unknown container.
func (r *Runtime) Signal(ctx context.Context, id wire.SessionID, sig string) error { panic("stub") }

// Delete ends the container, whatever its state, and removes it. It returns
// only when no process of it is left, or with an error. It is idempotent, also
// for a container that never was.
func (r *Runtime) Delete(ctx context.Context, id wire.SessionID) error { panic("stub") }

// List returns the ids of all containers below the root.
func (r *Runtime) List(ctx context.Context) ([]wire.SessionID, error) { panic("stub") }

// Close removes what runsc leaves below its root once no container is left.
func (r *Runtime) Close() error { panic("stub") }
