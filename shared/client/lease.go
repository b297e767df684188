package client

import (
	"context"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// signsPerLease is how many signs of life go into one lease, so that a late
// one or two do no harm.
const signsPerLease = 3

// leaseMillis returns the lease as it travels. One that is out of bounds stays
// so, and is refused.
func (o *AttachOptions) leaseMillis() uint64 {
	switch {
	case o.Mode != wire.ModeWriter:
		return 0
	case o.Lease == 0:
		return uint64(DefaultLease.Milliseconds())
	}
	return uint64(max(1, o.Lease.Milliseconds()))
}

// keepAlive sends signs of life in a goroutine of its own, which ends with the
// connection, or once the seat is lost; Close waits for it.
func (s *Session) keepAlive(lease time.Duration) {
	if lease <= 0 {
		return
	}
	s.link.spawn(func() {
		tick := time.NewTicker(lease / signsPerLease)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-s.fenced:
				return
			case <-s.link.done:
				return
			}
			s.showLife(lease)
		}
	})
}

// showLife sends a ping and waits for no answer: that may stand behind records
// that nobody takes. What fails ends the connection, which tells whoever uses
// it, or comes again with the next sign.
func (s *Session) showLife(lease time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), lease)
	defer cancel()
	id, _ := s.link.begin()
	defer s.link.forget(id)
	_ = s.link.write(ctx, "showing life", wire.Ping{ID: id})
}
