package session

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/runsc"
	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// A bridge is not trusted: what it says is bounded, decoded strictly, and
// concerns its own session alone, because the socket says which that is.

// serve answers a bridge, one request after the other, until its socket ends.
// A bridge that does not follow the protocol, or lets go of its broker, is
// ended: the next one has the same descriptors.
func (s *session) serve(b *bridge) {
	defer close(b.done)
	defer b.conn.Close()
	stop := context.AfterFunc(s.ctx, func() { b.conn.Close() })
	defer stop()
	began, n := time.Now(), 0
	for {
		err := s.serveOne(b)
		if err == nil {
			if time.Since(began) > requestTime {
				began, n = time.Now(), 0
			}
			if n++; n >= requestBurst {
				s.wait(requestTime)
			}
			continue
		}
		if s.ctx.Err() == nil && !s.dies(b, err) {
			s.happened("bridgeKilled", string(wire.CodeOf(err)))
			s.log.Warn("bridge_misbehaved", "pid", b.proc.ID().PID, "error", err.Error())
			s.kill(b)
		}
		return
	}
}

// What a bridge asks for costs a process and lines in the log. One that asks
// for more than this waits.
const (
	requestBurst = 100
	requestTime  = time.Second
)

// wait returns after the time, or at the session's end.
func (s *session) wait(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.ctx.Done():
	}
}

// dies reports whether the bridge's death explains the error: its socket ends
// a moment before it does.
func (s *session) dies(b *bridge, err error) bool {
	var violation *wire.Error
	if errors.As(err, &violation) {
		return false
	}
	t := time.NewTimer(deathTimeout)
	defer t.Stop()
	select {
	case <-b.proc.Done():
		return true
	case <-s.ctx.Done():
		return true
	case <-t.C:
		return false
	}
}

func (s *session) serveOne(b *bridge) error {
	payload, err := hear(b)
	if err != nil {
		return err
	}
	m, err := wire.Decode(wire.FromBridge, payload)
	if err != nil {
		return err
	}
	answer := s.answer(b, m)
	if answer == nil {
		return nil
	}
	if payload, err = wire.Encode(answer); err != nil {
		return err
	}
	if err := b.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	return fdpass.Send(b.conn, payload)
}

// hangTimeout is how long a bridge may say nothing, twice: it says that it is
// alive far more often. It is longer in tests whose bridges say nothing.
var hangTimeout = 4 * wire.BridgeAlivePeriod

// hear waits for a bridge's next message. One that says nothing is stopped, or
// hangs, and is ended. It gets its time twice: if it is us who was stopped, its
// words are there at the second look.
func hear(b *bridge) ([]byte, error) {
	for range 2 {
		b.conn.SetReadDeadline(time.Now().Add(hangTimeout))
		if b.proc.Dead() {
			b.silence() // we may have undone what it did
		}
		payload, fds, err := fdpass.Receive(b.conn, wire.MaxCustodyMessage)
		fdpass.CloseAll(fds)
		if !errors.Is(err, os.ErrDeadlineExceeded) || b.proc.Dead() {
			return payload, err
		}
	}
	return nil, &wire.Error{Code: wire.CodeTimeout, Message: fmt.Sprintf("the bridge has said nothing for %v", 2*hangTimeout)}
}

// answer does what the bridge asks for. Nil means that no answer is due.
func (s *session) answer(b *bridge, m wire.Message) wire.Message {
	var id uint64
	var err error
	switch m := m.(type) {
	case wire.Ready:
		tellReady(b, nil)
		return nil
	case wire.ErrorMessage:
		s.log.Error("bridge_error", "code", string(m.Code), "message", m.Message)
		tellReady(b, bridgeFailed("it can't open the session", m.Err()))
		return nil
	case wire.BridgeAlive:
		return nil
	case wire.BridgeSignal:
		id, err = m.ID, s.signal(s.ctx, m.Signal)
		s.m.Audit.Record(audit.Entry{
			UID: s.rec.BridgeUID, GID: s.rec.BridgeUID, PID: uint32(b.proc.ID().PID),
			Deployment: s.rec.Deployment, Operation: m.Kind(), Session: string(s.rec.Session),
		}.Decided(err))
	case wire.BridgeInputClosed:
		id = m.ID
		s.dropSpare(wire.FDStdin)
	case wire.BridgeSeat:
		id, err = m.ID, s.seat(&m.Seat)
	case wire.BridgeExit:
		if s.outlivesReaper() {
			return notEnded().ToMessage(m.ID) // it asks again and again
		}
		var reason wire.Reason
		if reason, err = s.report(m.Exit); err == nil {
			return wire.BridgeExitReason{ID: m.ID, Reason: reason}
		}
		id = m.ID
	}
	if err == nil {
		return wire.Done{ID: id}
	}
	s.log.Warn("bridge_refused", "request", m.Kind(), "error", err.Error())
	return AsError(err).ToMessage(id)
}

func tellReady(b *bridge, err error) {
	select {
	case b.ready <- err:
	default:
	}
}

// report takes the bridge's word for the exit code, which it alone reads, and
// answers with the reason, which the broker alone knows. That the sandbox has
// ended at all is believed when its reaper is dead.
func (s *session) report(exit wire.Exit) (wire.Reason, error) {
	s.mu.Lock()
	s.reported = &exit
	s.mu.Unlock()
	t := time.NewTimer(reasonTimeout)
	defer t.Stop()
	select {
	case <-s.reasoned:
	case <-s.ctx.Done():
		return "", stopping()
	case <-t.C:
		s.mu.Lock()
		s.reported = nil
		s.mu.Unlock()
		return "", notEnded()
	}
	s.mu.Lock()
	reason := s.exit().Reason
	s.mu.Unlock()
	err := s.update(func(r *record.Record) {
		if r.Exit != nil {
			e := s.exit()
			r.Exit = &e
		}
	})
	if err != nil && !errors.Is(err, errGone) {
		s.log.Error("record_unsaved", "error", err.Error())
	}
	return reason, nil
}

// outlivesReaper reports whether the reaper is dead and the sandbox is not: the
// end of the exit pipe, which the bridge sees, says nothing then.
func (s *session) outlivesReaper() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.orphaned && !isClosed(s.reasoned)
}

func notEnded() *wire.Error {
	return &wire.Error{Code: wire.CodeInvalidArgument, Message: "the sandbox has not ended", Advice: "report the exit when it has"}
}

// goFatal is the exit code of a Go program that its runtime ends.
const goFatal = 2

// exit combines what is known of the end. The caller holds the lock.
func (s *session) exit() wire.Exit {
	e := wire.Exit{Code: unobserved, Reason: wire.ReasonUnknown}
	switch {
	case s.reported != nil:
		e = *s.reported
	case s.rec.Exit != nil:
		e = *s.rec.Exit
	}
	switch {
	case s.known != "":
		e.Reason = s.known
	case s.oom && e.Reason == wire.ReasonUnknown:
		e.Code, e.Signal, e.Reason = 128+int64(unix.SIGKILL), "KILL", wire.ReasonOutOfMemory
	// A sandbox dies of a thread that it can't have as every Go program.
	case s.crowded && !s.rec.Terminated && !s.rec.Abandoned && (e.Reason == wire.ReasonUnknown || e.Code == goFatal):
		e.Reason = wire.ReasonTooManyProcesses
	case s.rec.Abandoned:
		e.Reason = wire.ReasonAbandoned
	case s.rec.Terminated || s.signals[e.Signal]:
		e.Reason = wire.ReasonTerminated
	// Where a child was killed for want of memory, the agent has gone on.
	case s.oom && e.Signal == "KILL":
		e.Reason = wire.ReasonOutOfMemory
	case s.reported != nil && e.Reason != wire.ReasonUnknown:
		e.Reason = wire.ReasonExited
	default:
		e.Reason = wire.ReasonUnknown
	}
	return e
}

// unobserved is the exit code when nobody saw the status.
const unobserved = 255

// signal sends a signal to the session's process.
func (s *session) signal(ctx context.Context, name string) error {
	if !lives(s.state()) {
		return notRunning()
	}
	s.mu.Lock()
	s.signals[name] = true
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	err := s.m.Runtime.Signal(ctx, s.rec.Session, name)
	switch {
	case errors.Is(err, runsc.ErrNotFound):
		return notRunning()
	case err != nil:
		return runtimeFailed("signal", err)
	}
	return nil
}

func notRunning() error {
	return &wire.Error{Code: wire.CodeSessionNotRunning, Message: "the session's process does not run", Advice: "inspect the session, or delete it"}
}

// AsError returns the error with a code in err's chain, or one that tells
// nothing of the broker's inside.
func AsError(err error) *wire.Error {
	var e *wire.Error
	if errors.As(err, &e) {
		return e
	}
	return &wire.Error{Code: wire.CodeInternal, Message: "the broker failed", Advice: "have the operator look at the broker's log", Err: err}
}

// Bounds of what a bridge may write into the broker's log.
const (
	logLine      = 2048
	logBurst     = 200
	logBurstTime = time.Second
)

// relay logs what the bridge writes to its standard error. It gets no
// descriptor of the log itself, where it could forge the audit's lines.
func (s *session) relay(b *bridge) {
	defer b.lines.Close()
	stop := context.AfterFunc(s.ctx, func() { b.lines.Close() })
	defer stop()
	log := s.log.Named("bridge").With("pid", b.proc.ID().PID)
	in := bufio.NewReaderSize(b.lines, logLine)
	began, n := time.Now(), 0
	for {
		line, err := in.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) && len(line) == 0 {
			return
		}
		if time.Since(began) > logBurstTime {
			if n > logBurst {
				log.Warn("lines_dropped", "count", n-logBurst)
			}
			began, n = time.Now(), 0
		}
		if n++; n <= logBurst {
			log.Info("said", "line", strings.ToValidUTF8(strings.TrimSuffix(string(line), "\n"), "\uFFFD"))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
