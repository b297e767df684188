package session

import (
	"context"
	"errors"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/runsc"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// R32: a deletion that can't be finished stays in the record, and the next one
// finishes it.
func TestDeleteConverges(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "")
	s.runtime.failDelete = errors.New("it does not die")
	if err := m.Delete(context.Background(), Of("one"), info.Session); wire.CodeOf(err) != wire.CodeInternal {
		t.Errorf("got %v", err)
	}
	if !s.hasState(m, info.Session, wire.StateDeleting)() {
		t.Error("the session is not deleting")
	}
	s.runtime.failDelete = nil
	s.delete(m, info.Session)
}

// R30: terminate ends what does not want to: here a stopped process, by KILL.
func TestTerminateKills(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "")
	if err := unix.Kill(int(info.SandboxPID), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	got, err := m.Terminate(context.Background(), Of("one"), info.Session, 50*time.Millisecond)
	if err != nil || got.State != wire.StateExited || got.Exit.Reason != wire.ReasonTerminated {
		t.Errorf("got %+v, %v", got, err)
	}
	s.delete(m, info.Session)
}

// R31: both orders of the bridge's report and the reaper's death give the same
// exit.
func TestExitOrder(t *testing.T) {
	report := wire.Exit{Code: 3, Reason: wire.ReasonExited, InputAccepted: 9}
	for name, first := range map[string]bool{"report first": true, "death first": false} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t)
			m := s.manager()
			info := s.create(m, "dying") // its bridges report nothing
			s.eventually("its bridges die", s.said("bridge_dies_often"))
			ses := m.sessions[info.Session]
			reason := make(chan wire.Reason, 1)
			tell := func() {
				r, err := ses.report(report)
				if err != nil {
					t.Error(err)
				}
				reason <- r
			}
			if first {
				go tell()
				s.eventually("reported", func() bool {
					ses.mu.Lock()
					defer ses.mu.Unlock()
					return ses.reported != nil
				})
			}
			s.killSandbox(info.Session)
			s.eventually("exited", s.hasState(m, info.Session, wire.StateExited))
			if !first {
				tell()
			}
			if got := <-reason; got != wire.ReasonExited {
				t.Errorf("the bridge was told %q", got)
			}
			i, err := m.Inspect(Of("one"), info.Session)
			if err != nil || *i.Exit != report {
				t.Errorf("got %+v, %v, want %+v", i.Exit, err, report)
			}
			s.delete(m, info.Session)
		})
	}
}

// A container that is gone can't be signalled.
func TestSignalToNone(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "")
	if err := m.Signal(context.Background(), Of("one"), info.Session, "USR2"); err != nil && !errors.Is(err, runsc.ErrNotFound) {
		t.Error(err)
	}
	s.delete(m, info.Session)
	if err := m.Signal(context.Background(), Of("one"), info.Session, "TERM"); wire.CodeOf(err) != wire.CodeUnknownSession {
		t.Errorf("got %v", err)
	}
}

// R31: memory is blamed for an end that it caused, and for no other.
func TestReasons(t *testing.T) {
	exited := func(code int64, signal string) *wire.Exit {
		return &wire.Exit{Code: code, Signal: signal, Reason: wire.ReasonExited, InputDelivered: 7}
	}
	unseen := &wire.Exit{Code: unobserved, Reason: wire.ReasonUnknown, InputDelivered: 7}
	for name, c := range map[string]struct {
		s    *session
		want wire.Exit
	}{
		"nothing is known":            {&session{}, wire.Exit{Code: unobserved, Reason: wire.ReasonUnknown}},
		"the sandbox was killed":      {&session{oom: true, reported: unseen}, wire.Exit{Code: 137, Signal: "KILL", Reason: wire.ReasonOutOfMemory, InputDelivered: 7}},
		"killed, and no bridge":       {&session{oom: true}, wire.Exit{Code: 137, Signal: "KILL", Reason: wire.ReasonOutOfMemory}},
		"the first process":           {&session{oom: true, reported: exited(137, "KILL")}, wire.Exit{Code: 137, Signal: "KILL", Reason: wire.ReasonOutOfMemory, InputDelivered: 7}},
		"a child, long ago":           {&session{oom: true, reported: exited(0, "")}, wire.Exit{Reason: wire.ReasonExited, InputDelivered: 7}},
		"a child, long ago, then 255": {&session{oom: true, reported: exited(unobserved, "")}, wire.Exit{Code: unobserved, Reason: wire.ReasonExited, InputDelivered: 7}},
		"a child, then a client":      {&session{oom: true, reported: exited(137, "KILL"), signals: map[string]bool{"KILL": true}}, wire.Exit{Code: 137, Signal: "KILL", Reason: wire.ReasonTerminated, InputDelivered: 7}},
		"no more threads":             {&session{crowded: true, reported: exited(2, "")}, wire.Exit{Code: 2, Reason: wire.ReasonTooManyProcesses, InputDelivered: 7}},
		"threads, long ago":           {&session{crowded: true, reported: exited(0, "")}, wire.Exit{Reason: wire.ReasonExited, InputDelivered: 7}},
		"the agent's own 2":           {&session{reported: exited(2, "")}, wire.Exit{Code: 2, Reason: wire.ReasonExited, InputDelivered: 7}},
		"somebody's KILL":             {&session{reported: exited(137, "KILL")}, wire.Exit{Code: 137, Signal: "KILL", Reason: wire.ReasonExited, InputDelivered: 7}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.s.exit(); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
