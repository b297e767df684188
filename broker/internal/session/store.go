package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/sdnotify"
	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// Systemd keeps duplicates of a session's spares, each named SESSION.ROLE, from
// before its bridge has them until the session is removed: so both may die at
// once.

// DescriptorsPerSession is how many descriptors systemd keeps for a session.
func DescriptorsPerSession() int { return len(order) }

func (s *session) storeName(role wire.DescriptorName) string {
	return string(s.rec.Session) + "." + string(role)
}

// doStore has systemd keep the spares. Without, a session goes on as long as
// its broker or its bridge lives.
func (s *session) doStore(context.Context, *creation) error {
	roles, fds := s.shared()
	names := make([]string, len(roles))
	for i, role := range roles {
		names[i] = s.storeName(role)
	}
	err := s.m.Systemd.Keep(names, fds)
	switch {
	case errors.Is(err, sdnotify.ErrFull):
		s.log.Error("descriptors_unstored", "error", err.Error(), "advice", "the session is lost when broker and bridge die at once; raise FileDescriptorStoreMax= in the broker's unit, or delete sessions")
	case err != nil:
		s.log.Error("descriptors_unstored", "error", err.Error(), "advice", "the session is lost when broker and bridge die at once")
	}
	return nil
}

// undoStore has systemd drop all that it keeps of the session.
func (s *session) undoStore(context.Context) error {
	names := make([]string, len(order))
	for i, role := range order {
		names[i] = s.storeName(role)
	}
	return s.m.Systemd.Drop(names...)
}

// storeAgain makes systemd's copies those of the spares that we have now.
func (s *session) storeAgain(ctx context.Context) {
	if err := s.undoStore(ctx); err != nil {
		s.log.Error("descriptors_unstored", "error", err.Error())
		return
	}
	_ = s.doStore(ctx, nil) // it says itself what fails
}

// closeInput closes the broker's and systemd's ends of the agent's input, whose
// bridge has closed its own: any of them keeps it open.
func (s *session) closeInput() error {
	s.dropSpare(wire.FDStdin)
	err := errors.Join(s.m.Systemd.Drop(s.storeName(wire.FDStdin)), s.m.Systemd.Barrier())
	if err != nil {
		return &wire.Error{Code: wire.CodeTimeout, Message: "systemd may still hold the agent's input open", Advice: "close the input again", Err: err}
	}
	return nil
}

// claim takes out of the descriptors that systemd passed those of a session.
func (m *Manager) claim(id wire.SessionID) (roles []wire.DescriptorName, fds []int) {
	for name, fd := range m.Stored {
		if session, role, _ := strings.Cut(name, "."); session == string(id) {
			roles, fds = append(roles, wire.DescriptorName(role)), append(fds, fd)
			delete(m.Stored, name)
		}
	}
	return roles, fds
}

// adopt makes what systemd kept the session's spares, all of it or nothing: a
// part of it is of no use.
func (s *session) adopt() {
	roles, fds := s.m.claim(s.rec.Session)
	if len(fds) == 0 {
		return
	}
	if s.rec.State != wire.StateCreating && s.rec.State != wire.StateDeleting {
		// Of standard input nothing is kept once it is closed.
		err := s.check(roles, fds, func(role wire.DescriptorName, _ record.Identity) bool { return role == wire.FDStdin })
		if err == nil {
			for i, role := range roles {
				s.hold(role, fds[i])
			}
			s.happened("sparesRegained", "systemd")
			s.log.Info("spares_kept_by_systemd")
			return
		}
		s.log.Error("stored_descriptors_refused", "error", err.Error(), "advice", "they are dropped; if the bridge lives, it is asked for its own")
	}
	fdpass.CloseAll(fds)
	for _, role := range roles {
		if err := s.m.Systemd.Drop(s.storeName(role)); err != nil {
			s.log.Error("stored_descriptors_left", "error", err.Error())
		}
	}
}

// hasSpares reports whether another bridge could be started.
func (s *session) hasSpares() bool {
	names, _ := s.shared()
	return len(names) > 0
}

// dropStored closes what systemd kept for no session, and has it dropped.
func (m *Manager) dropStored() error {
	var failed error
	for name, fd := range m.Stored {
		unix.Close(fd)
		delete(m.Stored, name)
		m.Log.Warn("stray_descriptor", "name", name, "advice", "no session has it; systemd is told to drop it")
		failed = errors.Join(failed, m.Systemd.Drop(name))
	}
	return failed
}

// check reports why descriptors that came back are not those of the record, by
// device, inode, type and access mode. Which ones may be missing is up to the
// caller.
func (s *session) check(roles []wire.DescriptorName, fds []int, mayMiss func(wire.DescriptorName, record.Identity) bool) error {
	if len(roles) != len(fds) {
		return fmt.Errorf("%d descriptors are named and %d came", len(roles), len(fds))
	}
	want := s.rec.Custody.Descriptors
	for i, role := range roles {
		id, err := identify(fds[i])
		if err != nil {
			return fmt.Errorf("%s: %w", role, err)
		}
		if known, ok := want[role]; !ok || id != known {
			return fmt.Errorf("%s is %+v, not %+v", role, id, known)
		}
	}
	for role, id := range want {
		if !slices.Contains(roles, role) && !mayMiss(role, id) {
			return fmt.Errorf("%s did not come", role)
		}
	}
	return nil
}

// Summary says in one line how many sessions there are.
func (m *Manager) Summary() string {
	m.mu.Lock()
	all := m.sorted(Operator())
	m.mu.Unlock()
	running, ended := 0, 0
	for _, s := range all {
		switch state := s.state(); {
		case lives(state):
			running++
		case state == wire.StateExited:
			ended++
		}
	}
	return fmt.Sprintf("sessions: %d running, %d ended", running, ended)
}
