package client

import (
	"context"
	"slices"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Next waits for the next record, in the order of sequences, without gap or
// duplicate. Its data is the caller's.
//
// It returns io.EOF after the exit record; ErrFenced after the records that
// came before a newer writer took over, and ErrLeaseExpired likewise;
// CodeReplayGap, with LostBefore, for a reader that was too slow: an observer
// that the writer's acks overtook, or anyone in a session that drops the
// oldest records at its limit; CodeConnectionLost when the connection ended
// before the exit record, in which case attaching at the last durable cursor
// goes on without loss; and CodeTimeout or CodeCancelled when ctx ends, after
// which it can be called again.
func (s *Session) Next(ctx context.Context) (Record, error) {
	if !s.reading.TryLock() {
		return Record{}, errConcurrentRead()
	}
	defer s.reading.Unlock()
	if err := s.fill(ctx); err != nil {
		return Record{}, err
	}
	r := s.current.records[s.at]
	s.at++
	s.setDelivered(r.Sequence)
	r.Data = slices.Clone(r.Data)
	return r, nil
}

// NextBatch is Next for many records at once: it waits for one and returns it
// with those that came in the same frame, at least one. The slice and the data
// are valid until the next call of Next or NextBatch.
func (s *Session) NextBatch(ctx context.Context) ([]Record, error) {
	if !s.reading.TryLock() {
		return nil, errConcurrentRead()
	}
	defer s.reading.Unlock()
	if err := s.fill(ctx); err != nil {
		return nil, err
	}
	records := s.current.records[s.at:]
	s.at = len(s.current.records)
	s.setDelivered(records[len(records)-1].Sequence)
	return records, nil
}

// fill makes current hold a record that was not given out.
func (s *Session) fill(ctx context.Context) error {
	if ctx.Err() != nil {
		return expired(ctx, "waiting for a record")
	}
	select {
	case <-s.link.done:
		if s.link.failure() == error(errClosed) {
			return errClosed
		}
	default:
	}
	if s.current != nil && s.at < len(s.current.records) {
		return nil
	}
	if s.current != nil {
		s.inbox.recycle(s.current)
		s.current = nil
	}
	b, err := s.inbox.take(ctx)
	if err != nil {
		return err
	}
	s.current, s.at = b, 0
	return nil
}

func (s *Session) setDelivered(sequence uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delivered = sequence
}

func errConcurrentRead() error {
	return &wire.Error{
		Code:    CodeConcurrentRead,
		Message: "another goroutine is reading records of this connection",
		Advice:  "read records from one goroutine at a time",
	}
}
