package session

import (
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/clock"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// seatPause is the least time between two words to the broker about the seat:
// each costs it a write to the disk, and clients may come and go as they like.
const seatPause = 100 * time.Millisecond

// seatRetry is the time between two tries to tell a broker that refuses: its
// disk may be full.
const seatRetry = 2 * time.Second

// vacate frees the seat. The caller holds the mutex.
func (s *Session) vacate() {
	s.seat, s.proof = nil, ""
	s.vacated = clock.Now()
	wake(s.seatWake)
}

// seatState is what the broker is told of the seat: nil while this bridge has
// had no writer, since it does not know what was before.
func (s *Session) seatState() *wire.Seat {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	switch {
	case !s.seated:
		return nil
	case s.seat != nil:
		return &wire.Seat{HasWriter: true}
	}
	return &wire.Seat{VacantMillis: uint64((clock.Now() - s.vacated).Milliseconds()), Released: s.released}
}

// runSeat tells the broker whenever the seat is taken or given up; it decides
// by that how long the session has been without a daemon. A broker that is away
// is told when it returns.
func (s *Session) runSeat() {
	for {
		select {
		case <-s.seatWake:
		case <-s.stop:
			return
		}
		pause := seatPause
		if err := s.tellSeat(); err != nil && s.cfg.Broker.Up() {
			s.log.Warn("seat_untold", "error", err.Error())
			pause = seatRetry
			wake(s.seatWake)
		}
		if !s.sleep(pause) {
			return
		}
	}
}

func (s *Session) tellSeat() error {
	seat := s.seatState()
	if seat == nil {
		return nil
	}
	_, err := s.cfg.Broker.Ask(brokerTimeout, func(id uint64) wire.Message {
		return wire.BridgeSeat{ID: id, Seat: *seat}
	})
	return err
}
