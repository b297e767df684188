package session

import (
	"context"
	"errors"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

const (
	// abandonedGrace is what TERM gets when a policy ends a process.
	abandonedGrace = 10 * time.Second
	// returnGrace is how long after a broker's start nothing that takes longer
	// is due, in milliseconds: daemons that waited for the broker come first.
	returnGrace = 60_000
	// clockEvery is how much a host that dies takes from the clock at most.
	clockEvery = 10 * time.Minute
	// atOnce is how many sessions are cleaned side by side.
	atOnce = 8
)

// policyTick is the time between two looks for what is due; longer in tests.
var policyTick = time.Second

// due returns what the session's policy will have done to it, why, and in how
// many milliseconds, by a clock that reads now, and read started when the
// broker began. A writer keeps everything away, except what was ordered
// already.
func due(r *record.Record, now, started uint64) (what wire.Due, why wire.Code, in uint64) {
	since, limit := r.VacantSince, uint64(0)
	switch {
	case lives(r.State) && r.Abandoned:
		return wire.DueEnd, wire.WhyAbandoned, 0
	case r.HasWriter:
		return "", "", 0
	case lives(r.State):
		what, why, limit = wire.DueEnd, wire.WhyAbandoned, r.Policy.EndAbandoned
	case r.State == wire.StateExited && r.Policy.DeleteEnded > 0 && r.Released:
		return wire.DueDelete, wire.WhyReleased, 0
	case r.State == wire.StateExited:
		what, why, limit = wire.DueDelete, wire.WhyExpired, r.Policy.DeleteEnded
		since = max(since, r.EndedAt)
	}
	if limit == 0 {
		return "", "", 0
	}
	at := max(since+limit, started+min(limit, returnGrace))
	return what, why, at - min(now, at)
}

// overdue returns what is due now, and why. Nothing is while a bridge of an
// earlier broker has not been heard: it may have a writer.
func (s *session) overdue() (wire.Due, wire.Code) {
	s.mu.Lock()
	defer s.mu.Unlock()
	what, why, in := due(&s.rec, s.m.Clock.Now(), s.m.started)
	if b := s.bridge; in > 0 || b != nil && b.conn == nil && !b.proc.Dead() {
		return "", ""
	}
	return what, why
}

// seat takes the bridge's word for whether there is a writer; a lie ends or
// keeps its own session. Nil means that this bridge has had none.
func (s *session) seat(seat *wire.Seat) error {
	now := s.m.Clock.Now()
	return s.update(func(r *record.Record) {
		switch {
		case seat == nil:
			vacate(r, now)
		case seat.HasWriter:
			r.HasWriter, r.Released = true, false
		default:
			r.HasWriter, r.VacantSince, r.Released = false, now-min(now, seat.VacantMillis), seat.Released
		}
	})
}

// vacate notes that the writer, if there was one, has gone with its bridge.
func vacate(r *record.Record, now uint64) {
	if r.HasWriter {
		r.HasWriter, r.VacantSince = false, now
	}
}

// bereave is vacate in memory; whatever comes of the bridge's death is saved.
func (s *session) bereave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	vacate(&s.rec, s.m.Clock.Now())
}

// police has done what is due until the manager is closed.
func (m *Manager) police() {
	defer m.work.Done()
	tick := time.NewTicker(policyTick)
	defer tick.Stop()
	save := time.NewTicker(clockEvery)
	defer save.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-save.C:
			if err := m.Clock.Save(); err != nil {
				m.Log.Error("clock_unsaved", "error", err.Error())
			}
		case <-tick.C:
			if m.reaping.take(m.ctx, "") == nil {
				m.enforce()
				m.reaping.release()
			}
		}
	}
}

// enforce does what is due in all sessions. Its turn is the caller's.
func (m *Manager) enforce() {
	m.mu.Lock()
	all := m.sorted(Operator())
	m.mu.Unlock()
	var late []*session
	for _, s := range all {
		if what, _ := s.overdue(); what != "" {
			late = append(late, s)
		}
	}
	each(late, func(s *session) error {
		ctx, cancel := context.WithTimeout(m.ctx, undoTimeout)
		defer cancel()
		err := s.enforce(ctx)
		if err != nil && m.ctx.Err() == nil {
			s.log.Error("policy_failed", "error", err.Error(), "advice", "delete the session, or run broker-admin gc")
		}
		return nil
	})
}

// enforce does what is due, if it still is.
func (s *session) enforce(ctx context.Context) error {
	what, why := s.overdue()
	switch what {
	case wire.DueEnd:
		s.mu.Lock()
		again := s.rec.Abandoned
		s.mu.Unlock()
		if !again {
			s.happened("reaped", string(why))
			s.log.Warn("session_abandoned", "advice", "it had no writer for longer than end_abandoned of its profile allows")
		}
		return s.terminate(ctx, abandonedGrace, func(r *record.Record) { r.Abandoned = true })
	case wire.DueDelete:
		if err := s.take(ctx); err != nil {
			return err
		}
		defer s.release()
		// A writer may have come, or a deletion, before it was our turn.
		if what, why = s.overdue(); what != wire.DueDelete {
			return nil
		}
		s.happened("reaped", string(why))
		s.log.Info("session_deleted", "reason", string(why))
		return s.erase(ctx)
	}
	return nil
}

// each calls f for all sessions, atOnce at a time, and returns when all calls
// have, with their errors.
func each(all []*session, f func(*session) error) error {
	slots := make(chan struct{}, atOnce)
	errs := make(chan error)
	go func() {
		for _, s := range all {
			slots <- struct{}{}
			go func() {
				errs <- f(s)
				<-slots
			}()
		}
	}()
	var failed error
	for range all {
		failed = errors.Join(failed, <-errs)
	}
	return failed
}
