package session

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

const (
	inputTransfer = 1 << 20
	// freeBehind keeps pages of input.data well behind what the pipe may
	// still hold: splice(2) puts the file's own pages into the pipe.
	freeBehind = custody.PipeSize
	retryInput = time.Second
)

// inputPump moves accepted input to the agent. Its goroutine alone touches the
// description that is spliced from.
type inputPump struct {
	delivered *atomic.Int64 // bytes that reached the pipe
	broken    *atomic.Bool  // the agent closed its end
	wake      chan struct{}
	drained   chan struct{} // closed when our end of the pipe is closed
	told      *toldOnce
}

func newInputPump(delivered int64) inputPump {
	p := inputPump{
		delivered: new(atomic.Int64), broken: new(atomic.Bool),
		wake: make(chan struct{}, 1), drained: make(chan struct{}), told: new(toldOnce),
	}
	p.delivered.Store(delivered)
	return p
}

func (p *inputPump) wakeUp() { wake(p.wake) }

// runInput is the pump.
func (s *Session) runInput() {
	if s.cfg.Set.Stdin == nil {
		// An earlier life did it all, the broker included.
		s.input.told.done = true
		close(s.input.drained)
		return
	}
	if !s.pumpInput() {
		return
	}
	s.cfg.Set.Stdin.Close()
	close(s.input.drained)
	if err := s.InputClosed(); err != nil {
		s.log.Warn("input_close_untold", "error", err.Error())
	}
}

// pumpInput delivers until input is closed and drained, which is true, or the
// session is stopped.
func (s *Session) pumpInput() bool {
	for {
		end, closed := s.inputTarget()
		at := s.input.delivered.Load()
		switch {
		case at < end && !s.input.broken.Load():
			if err := s.deliver(end - at); errors.Is(err, os.ErrClosed) {
				return s.agentGone()
			}
		case closed:
			return true
		default:
			select {
			case <-s.input.wake:
			case <-s.stop:
				return false
			}
		}
	}
}

// inputTarget returns the committed end, and whether nothing follows it.
func (s *Session) inputTarget() (end int64, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data.End(), s.closed || s.gone
}

func (s *Session) agentGone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// deliver moves some input, never beyond the committed end.
func (s *Session) deliver(n int64) error {
	moved, err := s.cfg.Set.Stdin.SpliceFrom(s.cfg.Set.InputSplice, int(min(n, inputTransfer)))
	s.input.delivered.Add(int64(moved))
	switch {
	case err == nil:
		s.freeInput()
	case errors.Is(err, unix.EPIPE):
		s.input.broken.Store(true)
		s.log.Info("input_broken", "undelivered", n)
	case !errors.Is(err, os.ErrClosed):
		s.log.Error("input_stalled", "error", err.Error())
		s.sleep(retryInput)
	}
	return err
}

func (s *Session) freeInput() {
	held, err := s.cfg.Set.Stdin.Buffered()
	if err != nil {
		return
	}
	below := s.input.delivered.Load() - held - freeBehind
	if err := s.data.Free(below, s.pageSize); err != nil {
		s.log.Error("free_failed", "error", err.Error())
	}
}

// toldOnce remembers whether the broker has closed its end.
type toldOnce struct {
	mu   sync.Mutex
	done bool
}

// InputClosed makes sure that the broker has closed its end of the agent's
// input too, which no longer matters once the agent has exited. It is called
// after the bridge's own end is closed. Errors:
// CodeBrokerUnreachable, CodeTimeout, the broker's own.
func (s *Session) InputClosed() error {
	t := s.input.told
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done || s.agentGone() {
		return nil
	}
	_, err := s.cfg.Broker.Ask(brokerTimeout, func(id uint64) wire.Message { return wire.BridgeInputClosed{ID: id} })
	t.done = err == nil
	return err
}
