package session

import (
	"cmp"
	"os"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/clock"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Signal sends a signal to the agent through the broker. Errors:
// CodeStaleWriter, CodeSessionNotRunning, CodeBrokerUnreachable, CodeTimeout,
// the broker's own.
func (s *Session) Signal(c *Client, lease, signal string) error {
	s.signals.RLock()
	defer s.signals.RUnlock()
	s.mu.Lock()
	err := s.mayWrite(c, lease)
	gone := s.gone
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if gone {
		return &wire.Error{
			Code:    wire.CodeSessionNotRunning,
			Message: "the agent has exited",
			Advice:  "read the exit record, or delete the session",
		}
	}
	return s.signal(signal)
}

func (s *Session) signal(name string) error {
	_, err := s.cfg.Broker.Ask(brokerTimeout, func(id uint64) wire.Message {
		return wire.BridgeSignal{ID: id, Signal: name}
	})
	return err
}

// Terminate takes the order to end the agent: standard input is closed now,
// TERM follows after the grace, KILL after the grace again. A newer order
// replaces the times of an older one. The order does not outlive the bridge.
// Errors: CodeStaleWriter, CodeBrokerUnreachable, CodeStorageFull; with any of
// them nothing was done.
func (s *Session) Terminate(c *Client, lease string, grace time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mayWrite(c, lease); err != nil {
		return err
	}
	if s.gone {
		return nil
	}
	if !s.cfg.Broker.Up() {
		return &wire.Error{
			Code:    wire.CodeBrokerUnreachable,
			Message: "the agent can't be signalled, because the bridge has lost its broker",
			Advice:  "close the agent's input, or start the broker again and terminate the session there",
		}
	}
	if err := s.closeInput(); err != nil {
		return err
	}
	if s.terminate != nil {
		close(s.terminate)
	}
	replaced := make(chan struct{})
	s.terminate = replaced
	s.own(func() { s.runTerminate(grace, replaced) })
	return nil
}

func (s *Session) runTerminate(grace time.Duration, replaced <-chan struct{}) {
	for _, name := range []string{"TERM", "KILL"} {
		if !s.await(grace, replaced) {
			return
		}
		err := s.signal(name)
		// The order was taken: a broker that is being restarted is waited for.
		for wire.CodeOf(err) == wire.CodeBrokerUnreachable && s.await(retryInput, replaced) {
			err = s.signal(name)
		}
		if err != nil {
			s.log.Error("terminate_failed", "signal", name, "error", err.Error())
		}
	}
}

// await waits, and reports whether there is still an agent to terminate by this
// order.
func (s *Session) await(d time.Duration, replaced <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return !s.agentGone()
	case <-s.ended:
	case <-replaced:
	case <-s.stop:
	}
	return false
}

// runAlive tells the broker that this bridge is not stopped. Looking at the
// session takes the mutex that everything needs: one that hangs says nothing. A
// broker that is away or reads nothing is told the next time.
func (s *Session) runAlive() {
	for s.sleep(wire.BridgeAlivePeriod) {
		_ = s.agentGone()
		_ = s.cfg.Broker.Tell(wire.BridgeAlive{})
	}
}

// Inspect returns the state of the session.
func (s *Session) Inspect(id uint64) wire.Status {
	s.clientsMu.Lock()
	attached := len(s.clients)
	s.clientsMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	next := s.index.Next()
	st := wire.Status{
		ID: id, Session: s.cfg.Session, Epoch: s.cfg.Epoch, BridgePID: uint64(os.Getpid()),
		Generation: s.generation, Observers: uint64(attached), NextSequence: next,
		LostBefore: s.floor.Sequence + 1, Acked: s.floor.Acked,
		StdoutBytes: uint64(s.stdout.Taken()), StderrBytes: uint64(s.stderr.Taken()),
		InputAccepted: uint64(s.data.End()), InputDelivered: uint64(s.input.delivered.Load()),
		SpoolBytes: uint64(max(0, s.held())), SpoolLimit: s.cfg.SpoolLimit,
		Framing: s.cfg.Framing, Overflow: s.cfg.Overflow, DroppedRecords: s.floor.DroppedRecords, DroppedBytes: s.floor.DroppedBytes,
		Pending: s.requests.list(next), InputClosed: s.closed, Exit: s.visibleExit(),
	}
	if reason := cmp.Or(s.stdout.StallReason(), s.stderr.StallReason()); reason != nil {
		st.OutputStalled, st.StallReason = true, stallReason(reason)
	}
	if s.seat != nil {
		st.HasWriter, st.Writer = true, s.seat.name
		st.Observers = uint64(max(0, attached-1))
		if l := &s.seat.lease; l.length > 0 {
			st.LeaseMillis = uint64(l.length.Milliseconds())
			st.LeaseRemainingMillis = uint64(max(0, l.left(clock.Now())).Milliseconds())
		}
	}
	return st
}
