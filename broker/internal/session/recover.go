package session

import (
	"context"
	"errors"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Recover takes up the sessions of an earlier broker: those that live are
// watched again, those that ended are cleaned, those that were being made or
// deleted are undone (R32, R33). It is called once, before any request. Those
// that live come first and wait for nothing: until a bridge is heard, its death
// loses the pipes. The others are done side by side.
//
// A bridge that lives went on without a broker, and gives its descriptors to
// this one (regain).
//
// Whatever bears a session's id and has no record is removed. What could not be
// is CodeInternal, whatever its own code, because the broker can go on; it is
// tried again at the next start, by a deletion or by Collect. None takes longer
// than undoTimeout. Other errors: those of record.Store.Load.
func (m *Manager) Recover(ctx context.Context) error {
	records, err := m.store.Load()
	if err != nil {
		return err
	}
	m.started = m.Clock.Now()
	for _, r := range records {
		// Where the clock's file was lost, times begin anew.
		r.VacantSince, r.EndedAt = min(r.VacantSince, m.started), min(r.EndedAt, m.started)
		m.sessions[r.Session] = m.newSession(r)
	}
	strays, err := m.strays(ctx)
	if err != nil {
		return err
	}
	orphans := m.orphans(strays)
	for id, s := range orphans {
		m.sessions[id] = s
		s.log.Warn("orphan_found", "advice", "its record is missing; what is left of it is removed")
	}
	var rest []*session
	for _, s := range m.sorted(Operator()) {
		s.turn <- struct{}{}
		// The users may have changed while no broker ran.
		s.welcome(m.registry.Load())
		if s.takeUp() {
			s.release()
		} else {
			rest = append(rest, s)
		}
	}
	failed := each(rest, func(s *session) error {
		defer s.release()
		within, cancel := context.WithTimeout(ctx, undoTimeout)
		defer cancel()
		err := s.recover(within)
		if err != nil {
			return &wire.Error{Code: wire.CodeInternal, Message: "the session " + string(s.rec.Session) + " has left something", Advice: "delete it", Err: err}
		}
		if orphans[s.rec.Session] != nil {
			s.happened("orphanRemoved", "")
		}
		return nil
	})
	m.work.Add(1)
	go m.police()
	return failed
}

// takeUp watches a session that lives, and reports whether it does.
func (s *session) takeUp() bool {
	if !lives(s.rec.State) {
		return false
	}
	if s.reaper = s.revive(s.rec.Reaper); s.reaper == nil && !s.lives(s.rec.Sandbox) {
		return false
	}
	if !s.reviveBridge() {
		s.begin()
		s.abandon("its bridge died with the broker that had its descriptors")
		return true
	}
	s.moveTo(wire.StateRunning)
	s.happened("recovered", string(wire.StateRunning))
	s.log.Info("session_recovered")
	s.begin()
	return true
}

// reviveBridge finds the bridge, if it still lives.
func (s *session) reviveBridge() bool {
	p := s.revive(s.rec.Bridge)
	if p == nil {
		s.bereave()
		return false
	}
	closed := make(chan struct{})
	close(closed)
	s.bridge = &bridge{proc: p, done: closed}
	return true
}

// recover cleans a session that does not live.
func (s *session) recover(ctx context.Context) error {
	state := s.rec.State
	if state == wire.StateCreating || state == wire.StateDeleting {
		s.happened("undone", string(state))
		s.log.Warn("session_undone", "was", string(state))
		return s.erase(ctx)
	}
	s.reviveBridge()
	if state != wire.StateExited {
		return s.recoverEnd(ctx)
	}
	if r := s.rec.Exit.Reason; r != wire.ReasonUnknown {
		s.known = r
	}
	close(s.reasoned)
	close(s.ended)
	// The one before may have died while it cleaned up.
	s.reaper = s.revive(s.rec.Reaper)
	err := errors.Join(s.undoContainer(ctx), s.undoPin(ctx))
	s.reaper = nil
	s.begin()
	return err
}

// recoverEnd is for a sandbox that ended while no broker was there.
func (s *session) recoverEnd(ctx context.Context) error {
	if s.rec.Boot != s.m.Boot {
		s.known = wire.ReasonHostRestarted
	}
	s.settle()
	err := errors.Join(s.undoContainer(ctx), s.undoPin(ctx), s.update(s.setEnded))
	close(s.ended)
	s.happened("ended", string(s.rec.Exit.Reason))
	s.log.Info("session_ended", "reason", string(s.rec.Exit.Reason), "while", "no broker was running")
	s.begin()
	return err
}

// revive finds a process of the record, if it still lives.
func (s *session) revive(id process.ID) *process.Process {
	if id.PID == 0 || s.rec.Boot != s.m.Boot {
		return nil
	}
	p, err := process.Find(id)
	if err != nil {
		if !errors.Is(err, process.ErrGone) {
			s.log.Error("process_not_found", "pid", id.PID, "error", err.Error())
		}
		return nil
	}
	return p
}

// lives reports whether a process of the record does.
func (s *session) lives(id process.ID) bool {
	p := s.revive(id)
	if p != nil {
		p.Close()
	}
	return p != nil
}

// setEnded puts the end into the record.
func (s *session) setEnded(r *record.Record) {
	e := s.exit()
	r.State, r.Exit, r.EndedAt = wire.StateExited, &e, s.m.Clock.Now()
}
