package client

import (
	"context"
	"fmt"
	"sync/atomic"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Follower reads a session and drops the records that this program, or the one
// whose place it takes, has seen before. What was seen may be ahead of what was
// acknowledged: a program that was killed in between gets those records again,
// and recognises them by their sequence.
type Follower struct {
	session    *Session
	cursorFile string
	seen       wire.Cursor
	writer     bool
	duplicates atomic.Uint64
}

// Follow makes a follower of an attached session. Records up to and including
// seen are dropped; an empty seen drops none. Commit keeps its place in
// cursorFile, unless that is empty. The error is CodeInvalidCursor when seen
// belongs to another epoch.
func (s *Session) Follow(seen wire.Cursor, cursorFile string) (*Follower, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attached == nil {
		return nil, &wire.Error{Code: wire.CodeNotAttached, Message: "the session is not attached", Advice: "attach first"}
	}
	if seen == (wire.Cursor{}) {
		seen.Epoch = s.attached.Epoch
	}
	if seen.Epoch != s.attached.Epoch {
		return nil, &wire.Error{
			Code:    wire.CodeInvalidCursor,
			Message: fmt.Sprintf("the cursor %s is of another life of the session, which is in epoch %s now", FormatCursor(seen), s.attached.Epoch),
			Advice:  "forget what was seen and start from the oldest record",
		}
	}
	return &Follower{session: s, cursorFile: cursorFile, seen: seen, writer: s.writer}, nil
}

// Next is Session.Next without what was seen before.
func (f *Follower) Next(ctx context.Context) (Record, error) {
	for {
		r, err := f.session.Next(ctx)
		if err != nil {
			return r, err
		}
		if f.fresh(r.Sequence) {
			return r, nil
		}
	}
}

// NextBatch is Session.NextBatch without what was seen before.
func (f *Follower) NextBatch(ctx context.Context) ([]Record, error) {
	for {
		records, err := f.session.NextBatch(ctx)
		if err != nil {
			return nil, err
		}
		// Sequences go up, so what was seen stands at the front.
		for len(records) > 0 && records[0].Sequence <= f.seen.Sequence {
			f.duplicates.Add(1)
			records = records[1:]
		}
		if len(records) > 0 {
			f.seen.Sequence = records[len(records)-1].Sequence
			return records, nil
		}
	}
}

func (f *Follower) fresh(sequence uint64) bool {
	if sequence <= f.seen.Sequence {
		f.duplicates.Add(1)
		return false
	}
	f.seen.Sequence = sequence
	return true
}

// Cursor is the place up to which records were returned.
func (f *Follower) Cursor() wire.Cursor { return f.seen }

// Duplicates is how many records were dropped because they had been seen.
func (f *Follower) Duplicates() uint64 { return f.duplicates.Load() }

// Commit says that everything returned so far is durable at the program: it
// saves the cursor first and, for a writer, acknowledges then.
func (f *Follower) Commit(ctx context.Context) error {
	if f.cursorFile != "" {
		if err := SaveCursor(f.cursorFile, f.seen); err != nil {
			return err
		}
	}
	if !f.writer || f.seen.Sequence == 0 {
		return nil
	}
	return f.session.Ack(ctx, min(f.seen.Sequence, f.session.seen()))
}
