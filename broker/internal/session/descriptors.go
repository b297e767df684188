package session

import (
	"context"
	"fmt"
	"path/filepath"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// Everything here is made with raw system calls and kept as raw descriptors:
// os.File would flip flags of descriptions that are shared with the bridge.
//
// The spares are the broker's duplicates of what a bridge holds, and never of
// the opposite ends of pipes.

// order is the order in which descriptors are passed.
var order = []wire.DescriptorName{
	wire.FDStdin, wire.FDStdout, wire.FDStderr, wire.FDExit, wire.FDListener,
	wire.FDStdoutSpool, wire.FDStdoutRead, wire.FDStderrSpool, wire.FDStderrRead, wire.FDIndex,
	wire.FDInputData, wire.FDInputSplice, wire.FDControlLog, wire.FDExitSpool, wire.FDExitRead,
}

// files are the files of the spool. Where one has two descriptions, one of
// them is spliced and used for nothing else, so it does not append: splice(2)
// refuses that.
var files = []struct {
	file  string
	name  wire.DescriptorName
	flags int
}{
	{"stdout", wire.FDStdoutSpool, unix.O_WRONLY},
	{"stdout", wire.FDStdoutRead, unix.O_RDWR},
	{"stderr", wire.FDStderrSpool, unix.O_WRONLY},
	{"stderr", wire.FDStderrRead, unix.O_RDWR},
	{"index", wire.FDIndex, unix.O_RDWR},
	{"input.data", wire.FDInputData, unix.O_RDWR},
	{"input.data", wire.FDInputSplice, unix.O_RDONLY},
	{"control.log", wire.FDControlLog, unix.O_RDWR},
	{"exit.data", wire.FDExitSpool, unix.O_WRONLY},
	{"exit.data", wire.FDExitRead, unix.O_RDONLY},
}

// hold keeps a descriptor as a spare.
func (s *session) hold(name wire.DescriptorName, fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spares[name] = fd
}

// dropSpare closes one spare, if it is there.
func (s *session) dropSpare(name wire.DescriptorName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fd, ok := s.spares[name]; ok {
		unix.Close(fd)
		delete(s.spares, name)
	}
}

func (s *session) dropSpares() {
	for _, name := range order {
		s.dropSpare(name)
	}
}

// doSpool makes the files, which belong to the bridge's user, in a folder that
// only root can enter.
func (s *session) doSpool(context.Context, *creation) error {
	if err := unix.Mkdir(s.paths.Spool, 0o700); err != nil {
		return fmt.Errorf("make the spool: %w", err)
	}
	made := make(map[string]bool)
	for _, f := range files {
		flags := f.flags | unix.O_CLOEXEC | unix.O_NOFOLLOW
		if !made[f.file] {
			flags |= unix.O_CREAT | unix.O_EXCL
			made[f.file] = true
		}
		fd, err := unix.Open(filepath.Join(s.paths.Spool, f.file), flags, 0o600)
		if err != nil {
			return fmt.Errorf("open the spool's %s: %w", f.file, err)
		}
		s.hold(f.name, fd)
		if err := unix.Fchown(fd, int(s.rec.BridgeUID), int(s.rec.BridgeUID)); err != nil {
			return fmt.Errorf("give the spool's %s to the bridge: %w", f.file, err)
		}
	}
	return checkPunch(s.spares[wire.FDStdoutRead])
}

// checkPunch refuses a file system that can't free what was acknowledged.
func checkPunch(fd int) error {
	const page = 4096
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, page); err != nil {
		return &wire.Error{Code: wire.CodeStorageFull, Message: "the file system of the spool can't free parts of a file", Advice: "have the operator move the broker's state to ext4, xfs or btrfs", Err: err}
	}
	return nil
}

func (s *session) undoSpool(context.Context) error { return removeTree(s.paths.Spool) }

// doSocket makes the listening socket. A connection that comes before the
// bridge is there waits in its backlog.
func (s *session) doSocket(context.Context, *creation) error {
	// Under the lock, so that no change of the users falls between.
	s.mu.Lock()
	fd, err := layout.Bind(s.paths.Socket, s.peers)
	if err == nil {
		s.spares[wire.FDListener] = fd
	}
	s.mu.Unlock()
	if err != nil {
		return &wire.Error{Code: wire.CodeInternal, Message: "the session's socket can't be made", Advice: "have the operator look at the broker's log", Err: err}
	}
	if err := unix.Listen(fd, 128); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return nil
}

func (s *session) undoSocket(context.Context) error { return layout.Remove(s.paths.Socket) }

// makePipes makes the four pipes. Each end is a description of its own: the
// bridge's are non-blocking, the agent's block, as programs expect.
func (s *session) makePipes(c *creation) error {
	for _, p := range []struct {
		name        wire.DescriptorName
		bridgeReads bool
		agent       *int
	}{
		{wire.FDStdin, false, &c.agent.Stdin},
		{wire.FDStdout, true, &c.agent.Stdout},
		{wire.FDStderr, true, &c.agent.Stderr},
		{wire.FDExit, true, &c.agent.Exit},
	} {
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			return fmt.Errorf("make a pipe: %w", err)
		}
		bridge, agent := ends[1], ends[0]
		if p.bridgeReads {
			bridge, agent = agent, bridge
		}
		s.hold(p.name, bridge)
		*p.agent = agent
		if err := unix.SetNonblock(agent, false); err != nil {
			return fmt.Errorf("make a pipe: %w", err)
		}
	}
	return nil
}

// shared returns the spares for the next bridge. They stay the session's; only
// the holder of its turn may use them, and input may be closed meanwhile.
func (s *session) shared() (names []wire.DescriptorName, fds []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range order {
		if fd, ok := s.spares[name]; ok {
			names, fds = append(names, name), append(fds, fd)
		}
	}
	return names, fds
}
