package client

import (
	"fmt"
	"slices"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Record is one whole record of output.
type Record struct {
	// Sequence counts the records of a session over all streams, from 1.
	Sequence uint64
	// Stream is standard output, standard error or, last of all, the exit.
	Stream wire.Stream
	// Continued says that the record was too long for the bridge to number as
	// one: it goes on in the next record of the same stream.
	Continued bool
	// Data holds the bytes as the agent wrote them, with their line feed; for
	// the exit, what wire.DecodeExit reads.
	Data []byte
}

// stream checks and reassembles what a bridge sends. It knows no connection;
// whatever a peer sends, it holds at most max bytes of an unfinished record
// and max bytes of pending requests.
type stream struct {
	max int
	// next is the sequence that has to come next; 0 before begin.
	next uint64
	// last is the sequence of the exit record where it is known, or 0.
	last   uint64
	exited bool

	live, pending partial
	// promised are the sequences of pending requests that are still to come.
	promised []uint64
	shown    []Record
	shownLen int
}

// partial is a record of which further fragments are to come.
type partial struct {
	sequence uint64
	stream   wire.Stream
	data     []byte
}

// begin takes the answer to an attach.
func (s *stream) begin(o *AttachOptions, a *wire.Attached) error {
	if a.NextSequence == 0 || a.LostBefore > a.NextSequence {
		return violation("bridge", "it holds records %d to %d", a.LostBefore, a.NextSequence)
	}
	switch o.From {
	case wire.FromCursor:
		if a.Epoch != o.Cursor.Epoch {
			return violation("bridge", "the epoch is %s instead of %s", a.Epoch, o.Cursor.Epoch)
		}
		s.next = o.Cursor.Sequence + 1
	case wire.FromOldest:
		s.next = max(1, a.LostBefore)
	default:
		s.next = a.NextSequence
	}
	if s.next > a.NextSequence || s.next < a.LostBefore {
		return violation("bridge", "record %d can't follow, it holds %d to %d", s.next, a.LostBefore, a.NextSequence)
	}
	if a.Exit != nil {
		s.last = a.NextSequence - 1
		s.exited = s.next > s.last
	}
	for _, p := range a.Pending {
		if slices.Contains(s.promised, p.Sequence) || p.Sequence >= a.NextSequence {
			return violation("bridge", "the pending request %d can't be", p.Sequence)
		}
		s.promised = append(s.promised, p.Sequence)
	}
	return nil
}

// add appends the records that the message completes to out. Their data
// aliases the message's, except for reassembled ones. owned is the size of
// those.
func (s *stream) add(out []Record, m wire.Records) (records []Record, owned int, err error) {
	if s.next == 0 {
		return out, 0, violation("bridge", "records come before the answer to an attach")
	}
	for i := range m.Records {
		if m.Pending {
			err = s.addPending(&m.Records[i])
		} else {
			var n int
			out, n, err = s.addLive(out, &m.Records[i])
			owned += n
		}
		if err != nil {
			return out, owned, err
		}
	}
	return out, owned, nil
}

func (s *stream) addLive(out []Record, r *wire.Record) ([]Record, int, error) {
	switch {
	case len(s.promised) > 0:
		return out, 0, violation("bridge", "record %d comes before the pending requests", r.Sequence)
	case s.exited:
		return out, 0, violation("bridge", "record %d comes after the exit", r.Sequence)
	case r.Sequence != s.next:
		return out, 0, violation("bridge", "record %d comes where %d belongs", r.Sequence, s.next)
	case s.last != 0 && (r.Sequence == s.last) != (r.Stream == wire.StreamExit):
		return out, 0, violation("bridge", "the exit belongs at %d and not elsewhere", s.last)
	}
	data, whole, err := s.live.join(r, s.max)
	if err != nil || !whole {
		return out, 0, err
	}
	if r.Stream == wire.StreamExit {
		if _, err := wire.DecodeExit(data); err != nil {
			return out, 0, violation("bridge", "the exit record can't be read: %v", err)
		}
		s.exited = true
	}
	s.next++
	owned := 0
	if r.Offset > 0 {
		owned = cap(data)
	}
	return append(out, Record{Sequence: r.Sequence, Stream: r.Stream, Continued: r.Flags&wire.FlagContinued != 0, Data: data}), owned, nil
}

func (s *stream) addPending(r *wire.Record) error {
	i := slices.Index(s.promised, r.Sequence)
	if i < 0 {
		return violation("bridge", "the pending request %d was not announced", r.Sequence)
	}
	if s.shownLen+len(r.Data) > s.max {
		return tooLarge("the pending requests of the session are", s.max)
	}
	s.shownLen += len(r.Data)
	data, whole, err := s.pending.join(r, s.max)
	if err != nil || !whole {
		return err
	}
	s.promised = slices.Delete(s.promised, i, i+1)
	s.shown = append(s.shown, Record{Sequence: r.Sequence, Stream: r.Stream, Continued: r.Flags&wire.FlagContinued != 0, Data: slices.Clone(data)})
	return nil
}

// join adds a fragment. It returns the whole record's data at its last one.
func (p *partial) join(r *wire.Record, limit int) (data []byte, whole bool, err error) {
	if p.sequence != 0 && (r.Sequence != p.sequence || r.Stream != p.stream) {
		return nil, false, violation("bridge", "record %d interrupts the fragments of %d", r.Sequence, p.sequence)
	}
	if r.Offset != uint64(len(p.data)) {
		return nil, false, violation("bridge", "the fragment of record %d at %d comes where %d belongs", r.Sequence, r.Offset, len(p.data))
	}
	if len(p.data)+len(r.Data) > limit {
		return nil, false, tooLarge("a record of the session is", limit)
	}
	if r.Flags&wire.FlagMore != 0 {
		p.sequence, p.stream = r.Sequence, r.Stream
		if missing := len(p.data) + len(r.Data) - cap(p.data); missing > 0 {
			// Doubling copies less than append, which grows by a quarter.
			p.data = slices.Grow(p.data, max(len(r.Data), min(2*len(p.data), limit)-len(p.data)))
		}
		p.data = append(p.data, r.Data...)
		return nil, false, nil
	}
	if p.sequence == 0 {
		return r.Data, true, nil
	}
	data = append(p.data, r.Data...)
	*p = partial{}
	return data, true, nil
}

func tooLarge(what string, limit int) error {
	return &wire.Error{
		Code:    CodeRecordTooLarge,
		Message: fmt.Sprintf("%s longer than the %d bytes that this client takes", what, limit),
		Advice:  "attach again with a larger SessionConfig.MaxRecord, or end the session",
	}
}
