package session

import (
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Return gives a later broker what it needs to replace this bridge:
// duplicates of the descriptors, which are the caller's, and the exit, if it is
// recorded.
func (s *Session) Return() (wire.Resumed, custody.Duplicates, error) {
	d, err := s.cfg.Set.Duplicate()
	return wire.Resumed{Descriptors: d.Names, Exit: s.visibleExit()}, d, err
}

// Returned tells the broker again that input is closed, if it is: the broker
// may have got our end of the pipe a moment before we closed it.
func (s *Session) Returned() {
	s.own(func() {
		if !isClosed(s.input.drained) {
			return
		}
		if err := s.InputClosed(); err != nil {
			s.log.Warn("input_close_untold", "error", err.Error())
		}
	})
}
