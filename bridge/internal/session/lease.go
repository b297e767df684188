package session

import (
	"fmt"
	"sync/atomic"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/clock"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// lease is how long a writer may be silent. Zero is for ever. Once it has run
// out nothing renews it: the writer has lost its seat, also when nobody has
// noticed yet.
type lease struct {
	length time.Duration
	heard  atomic.Int64 // clock.Now; written by the connection's reader
}

// renew notes a message of the writer, unless it comes too late.
func (l *lease) renew() {
	if now := clock.Now(); l.left(now) > 0 {
		l.heard.Store(int64(now))
	}
}

// left returns what is left of a lease that is not for ever.
func (l *lease) left(now time.Duration) time.Duration {
	return l.length - (now - time.Duration(l.heard.Load()))
}

func (l *lease) expired() bool { return l.length > 0 && l.left(clock.Now()) <= 0 }

// Heard renews the lease of a writer that has sent a message. It is called
// from the connection's reader only, before the message has its effect.
func (c *Client) Heard() {
	if c.lease.length > 0 {
		c.lease.renew()
	}
}

// leaseOf returns the lease that an attachment asks for.
func (s *Session) leaseOf(m wire.Attach) time.Duration {
	millis := m.LeaseMillis
	if millis == 0 {
		millis = s.cfg.LeaseMillis
	}
	return time.Duration(millis) * time.Millisecond
}

// expire frees the seat of a writer whose lease has run out, and tells it. The
// caller holds the mutex. Everything that depends on the seat calls it first,
// so that a lease ends at its time and not when a timer gets to run.
func (s *Session) expire() {
	if s.seat == nil || !s.seat.lease.expired() {
		return
	}
	s.log.Warn("lease_expired", "client", s.seat.name, "generation", s.generation, "lease", s.seat.lease.length.String())
	s.seat.peer.Fence(s.generation)
	s.vacate()
}

// runLease looks when a lease may have run out, so that the writer is told
// and the seat is seen to be free though nobody asks.
func (s *Session) runLease() {
	for {
		var due <-chan time.Time
		var t *time.Timer
		if left, ok := s.leaseLeft(); ok {
			t = time.NewTimer(left)
			due = t.C
		}
		select {
		case <-due:
		case <-s.leaseWake:
		case <-s.stop:
		}
		if t != nil {
			t.Stop()
		}
		if isClosed(s.stop) {
			return
		}
	}
}

// leaseLeft returns what is left of the present writer's lease, if it has one
// that ends.
func (s *Session) leaseLeft() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	if s.seat == nil || s.seat.lease.length == 0 {
		return 0, false
	}
	return max(0, s.seat.lease.left(clock.Now())), true
}

func (c *Config) checkLease() error {
	if c.LeaseMillis == 0 || c.LeaseMillis >= wire.MinLeaseMillis && c.LeaseMillis <= wire.MaxLeaseMillis {
		return nil
	}
	return badConfig("a lease of %d ms is not between %d and %d", c.LeaseMillis, wire.MinLeaseMillis, wire.MaxLeaseMillis)
}

// taken is the refusal of a second writer.
func (s *Session) taken() *wire.Error {
	advice := "attach as an observer, or take over on purpose"
	if s.seat.lease.length > 0 {
		advice += fmt.Sprintf("; the seat is free when the writer is silent for %s", s.seat.lease.length)
	}
	return &wire.Error{
		Code:    wire.CodeWriterAlreadyAttached,
		Message: fmt.Sprintf("the session has a living writer, %q of generation %d", s.seat.name, s.generation),
		Advice:  advice,
	}
}
