package session

import (
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Return gives a later broker what it needs to replace this bridge:
// duplicates of the descriptors, which are the caller's, the exit, if it is
// recorded, and whether there is a writer.
func (s *Session) Return() (wire.Resumed, custody.Duplicates, error) {
	d, err := s.cfg.Set.Duplicate()
	return wire.Resumed{Descriptors: d.Names, Exit: s.visibleExit(), Seat: s.seatState()}, d, err
}

// Returned tells the broker again what it may have missed: that input is closed
// (it may have got our end of the pipe a moment before we closed it), and how
// the agent ended (which may have happened when no broker was there, or since
// Return), and whether there is a writer.
func (s *Session) Returned() {
	wake(s.seatWake)
	s.own(func() {
		if err := s.exitAgain(); err != nil {
			s.log.Warn("exit_untold", "error", err.Error())
		}
		if !isClosed(s.input.drained) {
			return
		}
		if err := s.InputClosed(); err != nil {
			s.log.Warn("input_close_untold", "error", err.Error())
		}
	})
}

func (s *Session) exitAgain() error {
	if !s.agentGone() {
		return nil
	}
	status, exit := s.observed()
	s.mu.Lock()
	if s.exit != nil {
		exit = *s.exit
	}
	s.mu.Unlock()
	_, err := s.tellExit(status, exit)
	return err
}
