package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Recover takes up the sessions of an earlier broker: those that live are
// watched again, those that ended are cleaned, those that were being made or
// deleted are undone (R32, R33). It is called once, before any request.
//
// A bridge that lives went on without a broker, and gives its descriptors to
// this one (regain). What systemd kept of a session is taken first: then its
// bridge may be dead too.
//
// Whatever bears a session's id and has no record is removed. What could not be
// is CodeInternal, whatever its own code, because the broker can go on; it is
// tried again at the next start or by a deletion. None takes longer than
// undoTimeout. Other errors: those of record.Store.Load.
func (m *Manager) Recover(ctx context.Context) error {
	records, err := m.store.Load()
	if err != nil {
		return err
	}
	for _, r := range records {
		s := m.newSession(r)
		m.sessions[r.Session] = s
	}
	orphans, err := m.orphans(ctx)
	if err != nil {
		return err
	}
	for _, s := range orphans {
		m.sessions[s.rec.Session] = s
		s.log.Warn("orphan_found", "advice", "its record is missing; what is left of it is removed")
	}
	var failed error
	for _, s := range m.sorted(Operator()) {
		s.turn <- struct{}{}
		// The users may have changed while no broker ran.
		s.welcome(m.registry.Load())
		within, cancel := context.WithTimeout(ctx, undoTimeout)
		err := s.recover(within)
		cancel()
		if orphans[s.rec.Session] != nil && err == nil {
			s.happened("orphanRemoved", "")
		}
		if err != nil {
			failed = errors.Join(failed, &wire.Error{Code: wire.CodeInternal, Message: "the session " + string(s.rec.Session) + " has left something", Advice: "delete it", Err: err})
		}
		s.release()
	}
	return errors.Join(failed, m.dropStrays())
}

func (s *session) recover(ctx context.Context) error {
	state := s.rec.State
	kept := s.adopt()
	if state == wire.StateCreating || state == wire.StateDeleting {
		s.happened("undone", string(state))
		s.log.Warn("session_undone", "was", string(state))
		return s.erase(ctx)
	}
	s.bridge = nil
	p, err := s.revive(s.rec.Bridge)
	if p != nil {
		closed := make(chan struct{})
		close(closed)
		s.bridge = &bridge{proc: p, done: closed}
	}
	if err != nil {
		// It may live, and then nobody else may have what it has.
		s.dropSpares()
		kept = false
	}
	// What can't be found is taken for dead, and its container removed.
	s.reaper, _ = s.revive(s.rec.Reaper)
	if s.reaper == nil && state != wire.StateExited {
		return s.recoverEnd(ctx)
	}
	if state == wire.StateExited {
		if r := s.rec.Exit.Reason; r != wire.ReasonUnknown {
			s.known = r
		}
		close(s.reasoned)
		close(s.ended)
		// The one before may have died while it cleaned up.
		err := errors.Join(s.undoContainer(ctx), s.undoPin(ctx))
		s.reaper = nil
		s.begin()
		return err
	}
	if s.bridge == nil && !kept {
		s.begin()
		s.abandon("its bridge died with the broker that had its descriptors")
		return nil
	}
	s.moveTo(wire.StateRunning)
	s.happened("recovered", string(wire.StateRunning))
	s.log.Info("session_recovered")
	s.begin()
	return nil
}

// recoverEnd is for a sandbox that ended while no broker was there.
func (s *session) recoverEnd(ctx context.Context) error {
	if s.rec.Boot != s.m.Boot {
		s.known = wire.ReasonHostRestarted
	}
	s.settle()
	err := errors.Join(s.undoContainer(ctx), s.undoPin(ctx), s.update(func(r *record.Record) {
		e := s.exit()
		r.State, r.Exit = wire.StateExited, &e
	}))
	close(s.ended)
	s.happened("ended", string(s.rec.Exit.Reason))
	s.log.Info("session_ended", "reason", string(s.rec.Exit.Reason), "while", "no broker was running")
	s.begin()
	return err
}

// revive finds a process of the record: nil without an error means that it is
// dead. Other errors are logged.
func (s *session) revive(id process.ID) (*process.Process, error) {
	if id.PID == 0 || s.rec.Boot != s.m.Boot {
		return nil, nil
	}
	p, err := process.Find(id)
	if errors.Is(err, process.ErrGone) {
		return nil, nil
	}
	if err != nil {
		s.log.Error("process_not_found", "pid", id.PID, "error", err.Error())
	}
	return p, err
}

// orphans makes sessions of what has an id and no record.
func (m *Manager) orphans(ctx context.Context) (map[wire.SessionID]*session, error) {
	traces, err := m.Layout.Traces()
	if err != nil {
		return nil, err
	}
	ids, err := m.Runtime.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	for _, id := range ids {
		if _, ok := traces[id]; !ok {
			traces[id] = layout.Trace{}
		}
	}
	found := make(map[wire.SessionID]*session)
	for id, t := range traces {
		if m.sessions[id] == nil {
			found[id] = m.newSession(record.Record{
				Session: id, Deployment: cmp.Or(t.Deployment, "unknown"), Container: t.Container,
				Workspace: "unknown", Profile: "unknown", State: wire.StateDeleting,
			})
		}
	}
	return found, nil
}
