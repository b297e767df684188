package session

import (
	"sort"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/index"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/journal"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// dropPart is the part of the limit that is dropped at once, so that a session
// at its limit does not move its floor with every transfer. A reader has as
// long to go on as the agent takes to print that much.
const dropPart = 16

// raise moves the floor up: first its entry in the log, then the floor in
// memory, which readers check after they have read; only then may anything
// below it be freed. The caller holds the mutex. Error: CodeStorageFull.
func (s *Session) raise(floor journal.Floor) error {
	if err := s.control.SetFloor(floor); err != nil {
		return storageFull("the new floor", err)
	}
	s.floor = floor
	s.pinnedBytes.Store(s.requests.bytesBelow(int64(floor.Ends.Stdout)))
	s.floorSequence.Store(floor.Sequence)
	s.floorBytes.Store(int64(floor.Ends.Stdout + floor.Ends.Stderr))
	return nil
}

func (s *Session) drops() bool { return s.cfg.Overflow == wire.OverflowDropOldest }

// dropOldest drops the oldest whole records: as many as make room for a part
// of the limit, and for the given number of records. It returns once they are
// freed, so that the spool never grows on while its disk waits to be given
// back. A pending request's record is dropped without making room.
func (s *Session) dropOldest(records uint64) error {
	s.mu.Lock()
	// The other stream may have made room meanwhile.
	for s.held() > s.keep() || s.indexRoom() < int64(records) {
		more, err := s.dropOnce(records)
		if err != nil {
			s.mu.Unlock()
			return err
		}
		if !more {
			break
		}
	}
	s.mu.Unlock()
	s.free()
	return nil
}

// keep is how much output is left after a drop.
func (s *Session) keep() int64 { return int64(s.cfg.SpoolLimit - s.cfg.SpoolLimit/dropPart) }

// dropOnce moves the floor over the records that are too many, and reports
// whether there are others behind it. The caller holds the mutex.
func (s *Session) dropOnce(records uint64) (more bool, err error) {
	first, next := s.floor.Sequence+1, s.index.Next()
	if first == next {
		return false, nil
	}
	// The floor's end from which on no more is held than may be kept.
	enough := int64(s.floor.Ends.Total()) + s.held() - s.keep()
	var failed error
	n := sort.Search(int(next-first), func(i int) bool {
		sequence := first + uint64(i)
		e, err := s.index.Entry(sequence)
		if err != nil {
			failed = err
		}
		return failed != nil || int64(e.Ends.Total()) >= enough && sequence-s.floor.Sequence >= records
	})
	if failed != nil {
		return false, failed
	}
	last := min(first+uint64(n), next-1)
	e, err := s.index.Entry(last)
	if err != nil {
		return false, err
	}
	floor := s.floor
	floor.Floor = index.Floor{Sequence: last, Ends: e.Ends}
	floor.DroppedRecords += last - s.floor.Sequence
	floor.DroppedBytes += e.Ends.Total() - s.floor.Ends.Total()
	if err := s.raise(floor); err != nil {
		return false, err
	}
	return last+1 < next, nil
}
