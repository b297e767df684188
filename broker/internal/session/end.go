package session

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// begin starts the goroutines of a session that has its processes.
func (s *session) begin() {
	s.mu.Lock()
	bridge, ended := s.bridge, s.rec.State == wire.StateExited
	s.attended = bridge != nil
	s.mu.Unlock()
	if !ended {
		s.m.work.Add(1)
		go func() {
			defer s.m.work.Done()
			if s.awaitEnd() {
				s.settle()
				s.finish()
			}
		}()
	}
	if bridge == nil && ended {
		s.revisitLater()
	}
	if bridge != nil {
		s.m.work.Add(1)
		go func() {
			defer s.m.work.Done()
			s.attend()
		}()
	}
}

// awaitEnd waits for the sandbox's death, and reports false when we stop before.
// The reaper comes first: it dies by itself once it has told the status. If it
// dies before its sandbox, the status is lost, and nothing else.
func (s *session) awaitEnd() bool {
	s.mu.Lock()
	reaper := s.reaper
	s.mu.Unlock()
	if reaper != nil {
		select {
		case <-reaper.Done():
		case <-s.ctx.Done():
			return false
		}
	}
	sandbox := s.revive(s.rec.Sandbox)
	if sandbox == nil {
		return true
	}
	defer sandbox.Close()
	s.mu.Lock()
	s.orphaned = true
	s.mu.Unlock()
	s.happened("reaperDied", "")
	s.log.Error("reaper_died", "sandbox", sandbox.ID().PID, "advice", "the session goes on; nobody will know its exit status")
	select {
	case <-sandbox.Done():
		return true
	case <-s.ctx.Done():
		return false
	}
}

// settle finds out why the sandbox has ended, while its cgroup still tells.
func (s *session) settle() {
	oom, err := s.m.Groups.OOMKilled(s.cgroup())
	crowded, err2 := s.m.Groups.Crowded(s.cgroup())
	if err := errors.Join(err, err2); err != nil {
		s.log.Error("limit_events_unread", "error", err.Error())
	}
	if oom {
		s.log.Warn("memory_exhausted", "advice", "the kernel has killed a process of the session for want of memory; raise memory in its profile")
	}
	if crowded {
		s.log.Warn("processes_exhausted", "advice", "the kernel has refused the session a thread; raise pids in its profile")
	}
	s.mu.Lock()
	s.oom, s.crowded = oom, crowded
	s.mu.Unlock()
	close(s.reasoned)
}

// finish removes the container of a session that has ended. Its bridge, spool
// and socket stay until the session is deleted: clients still read.
func (s *session) finish() {
	if s.take(s.ctx) != nil {
		return
	}
	defer s.release()
	if s.state() == wire.StateDeleting {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, undoTimeout)
	defer cancel()
	names, _ := s.shared()
	lost := s.state() == wire.StateUnattached && len(names) == 0
	err := errors.Join(s.undoContainer(ctx), s.undoPin(ctx))
	if s.ctx.Err() != nil {
		return // a deletion, or the next broker, does it again
	}
	if err != nil {
		s.log.Error("container_left", "error", err.Error(), "advice", "delete the session")
	}
	s.note(s.setEnded)
	s.mu.Lock()
	e := *s.rec.Exit
	s.mu.Unlock()
	s.happened("ended", string(e.Reason))
	close(s.ended)
	s.log.Info("session_ended", "code", e.Code, "signal", e.Signal, "reason", string(e.Reason))
	if lost {
		s.revisitLater()
	}
}

// undoContainer removes the container, its reaper and its cgroup.
func (s *session) undoContainer(ctx context.Context) error {
	err := s.m.Runtime.Delete(ctx, s.rec.Session)
	if err != nil {
		return err
	}
	s.mu.Lock()
	reaper, id := s.reaper, s.rec.Reaper
	s.mu.Unlock()
	if reaper == nil {
		err = s.killRecorded(ctx, id)
	} else if err = waitOrKill(ctx, reaper.Done(), func(ctx context.Context) error { return reaper.Kill(ctx) }); err == nil {
		err = reaper.Close()
	}
	err = errors.Join(err, s.m.Groups.Remove(ctx, s.cgroup()))
	if parent := filepath.Dir(s.cgroup()); parent != s.m.Groups.Parent() {
		err = errors.Join(err, s.m.Groups.RemoveEmpty(parent))
	}
	return err
}

// waitOrKill gives a process that has nothing left to do a moment to end.
func waitOrKill(ctx context.Context, done <-chan struct{}, kill func(context.Context) error) error {
	t := time.NewTimer(sendTimeout)
	defer t.Stop()
	select {
	case <-done:
		return nil
	case <-t.C:
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	return kill(ctx)
}

// Signal sends a signal to a session's first process. Errors:
// CodeUnknownSession, CodeSessionNotRunning, CodeRuntimeFailed.
func (m *Manager) Signal(ctx context.Context, scope Scope, id wire.SessionID, name string) error {
	s, err := m.find(scope, id)
	if err != nil {
		return err
	}
	return s.signal(ctx, name)
}

// Terminate ends a session's process: TERM, and KILL after the grace, or at
// once when it is 0. It returns when the process has ended; the session stays
// until it is deleted. Errors: CodeUnknownSession, CodeSessionNotRunning for
// one that is being made or deleted, CodeRuntimeFailed, CodeTimeout.
func (m *Manager) Terminate(ctx context.Context, scope Scope, id wire.SessionID, grace time.Duration) (wire.SessionInfo, error) {
	s, err := m.find(scope, id)
	if err != nil {
		return wire.SessionInfo{}, err
	}
	if s.state() == wire.StateExited {
		return s.info(), nil
	}
	if err := s.terminate(ctx, grace, terminated); err != nil {
		return wire.SessionInfo{}, err
	}
	return s.info(), nil
}

// terminated is the mark of an end that somebody ordered.
func terminated(r *record.Record) { r.Terminated = true }

// terminate ends the process, having marked the record with whose order it is.
func (s *session) terminate(ctx context.Context, grace time.Duration, mark func(*record.Record)) error {
	if !lives(s.state()) {
		return notRunning()
	}
	s.note(mark)
	var failed error
	for _, try := range []struct {
		signal string
		wait   time.Duration
	}{{"TERM", grace}, {"KILL", killTimeout}} {
		if try.wait == 0 {
			continue
		}
		// What is ending by itself can't be signalled, and need not be: whether
		// it ends is what counts.
		failed = s.signal(ctx, try.signal)
		t := time.NewTimer(try.wait)
		defer t.Stop()
		select {
		case <-s.ended:
			return nil
		case <-s.ctx.Done():
			if s.m.ctx.Err() != nil {
				return stopping()
			}
			return notRunning()
		case <-ctx.Done():
			return &wire.Error{Code: wire.CodeTimeout, Message: "the session's process was not waited for", Advice: "inspect the session", Err: context.Cause(ctx)}
		case <-t.C:
		}
	}
	return &wire.Error{Code: wire.CodeTimeout, Message: "the session's process did not end", Advice: "delete the session", Err: failed}
}

// Delete ends a session if it lives and removes everything that it left. It
// is idempotent, also for a session that never was. What could not be removed
// is an error, and stays in the record for the next try.
func (m *Manager) Delete(ctx context.Context, scope Scope, id wire.SessionID) error {
	s, err := m.find(scope, id)
	if err != nil {
		return nil
	}
	// Ends a creation that still goes on, which then undoes itself.
	s.cancel()
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.release()
	if isClosed(s.gone) {
		return nil
	}
	return s.erase(ctx)
}

// erase undoes everything. The caller has the session's turn.
func (s *session) erase(ctx context.Context) error {
	s.note(func(r *record.Record) { r.State = wire.StateDeleting })
	return s.undo(ctx, len(steps)-1)
}

func (s *session) closeProcesses() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reaper != nil {
		s.reaper.Close()
	}
	if s.bridge != nil {
		s.bridge.proc.Close()
	}
}
