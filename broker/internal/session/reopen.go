package session

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// reopen starts a bridge on the files of a session that has ended and whose
// descriptors are gone, with the host's restart or with broker and bridge: what
// was spooled can be read until the session is deleted (R31). The pipes that it
// gets are at their ends.
func (s *session) reopen(ctx context.Context) error {
	s.dropSpares()
	if err := s.reopenSpool(); err != nil {
		return err
	}
	for _, name := range endless {
		if err := s.holdEnded(name); err != nil {
			return err
		}
	}
	if err := s.undoSocket(ctx); err != nil {
		return err
	}
	if err := s.doSocket(ctx, nil); err != nil {
		return err
	}
	identities, err := s.identities()
	if err != nil {
		return err
	}
	err = s.update(func(r *record.Record) {
		// Of the boot before, nothing is left to be ended.
		r.Boot, r.Sandbox, r.Reaper, r.Bridge = s.m.Boot, process.ID{}, process.ID{}, process.ID{}
		r.Custody.Descriptors = identities
	})
	if err != nil {
		return err
	}
	return s.startBridge(ctx)
}

// endless are the pipes that a bridge is not started without: it takes a missing
// standard input for a mistake of ours, unless a client has closed it.
var endless = []wire.DescriptorName{wire.FDStdin, wire.FDStdout, wire.FDStderr, wire.FDExit}

// holdEnded holds a pipe that is at its end, or that nobody reads.
func (s *session) holdEnded(name wire.DescriptorName) error {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	if name == wire.FDStdin {
		ends[0], ends[1] = ends[1], ends[0]
	}
	unix.Close(ends[1])
	s.hold(name, ends[0])
	return nil
}

// reopenSpool opens the files again. What a description knew is found anew:
// spools end where the last byte is; how much input was delivered is not known,
// and what was freed is the least.
func (s *session) reopenSpool() error {
	for _, f := range files {
		fd, err := unix.Open(filepath.Join(s.paths.Spool, f.file), f.flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			return fmt.Errorf("open the spool's %s: %w", f.file, err)
		}
		s.hold(f.name, fd)
		switch f.name {
		case wire.FDStdoutSpool, wire.FDStderrSpool, wire.FDExitSpool:
			_, err = unix.Seek(fd, 0, io.SeekEnd)
		case wire.FDInputSplice:
			if _, err = unix.Seek(fd, 0, unix.SEEK_DATA); err == unix.ENXIO {
				_, err = unix.Seek(fd, 0, io.SeekEnd)
			}
		}
		if err != nil {
			return fmt.Errorf("open the spool's %s: %w", f.file, err)
		}
	}
	return nil
}

// revisitLater revisits as soon as it can have the session's turn.
func (s *session) revisitLater() {
	s.m.work.Add(1)
	go func() {
		defer s.m.work.Done()
		s.revisit()
	}()
}

// revisit makes the output of a session that has ended readable again.
func (s *session) revisit() {
	if s.take(s.ctx) != nil {
		return
	}
	if isClosed(s.gone) {
		s.release()
		return
	}
	err := s.reopen(s.ctx)
	s.mu.Lock()
	s.attended = err == nil
	b := s.bridge
	s.mu.Unlock()
	if err != nil && b != nil {
		s.kill(b)
	}
	s.release()
	if err != nil {
		s.log.Error("output_unreadable", "error", err.Error(), "advice", "the exit is still told; delete the session, or start the broker again when what is in the way is mended")
		return
	}
	s.log.Info("output_readable", "socket", layout.SocketName(s.rec.Session))
	s.attend()
}
