package sdnotify

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// ErrFull: the store has no room for all of the descriptors, and got none.
var ErrFull = errors.New("systemd's store of descriptors is full")

// Size is how many descriptors the store takes; 0 means that there is none.
func (s *Systemd) Size() int {
	if s == nil {
		return 0
	}
	return s.most
}

// Keep has systemd keep duplicates of the descriptors, each under its name, at
// most 255 printable characters without a colon, until Drop: over our death,
// and whatever becomes of their other ends (FDPOLL=0). Error: ErrFull; systemd
// itself drops what it has no room for without a word.
func (s *Systemd) Keep(names []string, fds []int) error {
	if s == nil || s.most == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.kept)+len(names) > s.most {
		return fmt.Errorf("%w: %d of %d", ErrFull, len(s.kept), s.most)
	}
	for i, name := range names {
		// Also if the sending fails: then it is not known whether it has it.
		s.kept[name] = true
		if err := s.send(fds[i:i+1], "FDSTORE=1", "FDPOLL=0", "FDNAME="+name); err != nil {
			return err
		}
	}
	return nil
}

// Drop has systemd close what it keeps under the names. It is idempotent.
func (s *Systemd) Drop(names ...string) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if !s.kept[name] {
			continue
		}
		if err := s.send(nil, "FDSTOREREMOVE=1", "FDNAME="+name); err != nil {
			return err
		}
		delete(s.kept, name)
	}
	return nil
}

// Barrier returns when systemd has done what all messages about its store say:
// it closes the descriptor that comes with this one (since version 246). It
// closes what it drops in the background, within moments.
func (s *Systemd) Barrier() error {
	if s == nil || !s.storing {
		return nil
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("wait for systemd: %w", err)
	}
	defer unix.Close(ends[0])
	err := s.send(ends[1:], "BARRIER=1")
	unix.Close(ends[1])
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(sendTimeout); ; {
		left := time.Until(deadline)
		if left <= 0 {
			return errors.New("wait for systemd: it does not answer")
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(ends[0])}}, int(left.Milliseconds())+1)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for systemd: %w", err)
		case n > 0:
			return nil
		}
	}
}
