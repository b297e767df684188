package client

import (
	"context"
	"fmt"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// AttachOptions says how to join a session; the fields are those of
// wire.Attach.
type AttachOptions struct {
	// Mode is that of a writer or of an observer.
	Mode wire.Mode
	// From says where to begin; Cursor is given exactly with wire.FromCursor.
	From   wire.From
	Cursor *wire.Cursor
	// Takeover lets a writer replace the one that is attached.
	Takeover bool
	// Client names this program in logs, at most wire.MaxClient bytes.
	Client string
	// Lease is how long this program may be silent, as a writer, before it
	// loses its seat: DefaultLease when it is 0, or 1 s to 1 h, in
	// milliseconds. The connection itself sends a sign of life three times in
	// a lease, so only a program that is stopped, or a host that hangs, is
	// silent.
	Lease time.Duration
}

// DefaultLease is the lease of a writer that names none.
const DefaultLease = 30 * time.Second

// Attach joins the session, once on a connection; when it is refused, it may
// be called again. It returns when the pending requests have come too. When
// ctx ends it, the connection ends, because it is not known whether this is
// the writer.
//
// Errors: CodeWriterAlreadyAttached, CodeInvalidCursor, CodeReplayGap with
// LostBefore, CodeAlreadyAttached.
func (s *Session) Attach(ctx context.Context, o AttachOptions) (*wire.Attached, error) {
	if o.Cursor != nil {
		cursor := *o.Cursor
		o.Cursor = &cursor
	}
	request := wire.Attach{ID: 1, Mode: o.Mode, From: o.From, Cursor: o.Cursor, Takeover: o.Takeover, Client: o.Client, LeaseMillis: o.leaseMillis()}
	if err := request.Validate(); err != nil {
		return nil, err
	}
	if !s.setOptions(nil, &o) {
		return nil, &wire.Error{
			Code:    wire.CodeAlreadyAttached,
			Message: "this connection is attached already, or about to be",
			Advice:  "use one connection for each attachment",
		}
	}
	ctx, end := s.start(ctx)
	defer end()
	m, err := call[wire.Attached](ctx, s.link, "attaching to the session", func(id uint64) wire.Message {
		request.ID = id
		return request
	})
	if ctx.Err() != nil && err != nil {
		s.link.fail(err)
	}
	if err != nil {
		s.setOptions(&o, nil)
		return nil, s.explain(err)
	}
	if (m.Lease != "") != (o.Mode == wire.ModeWriter) {
		err := violation(s.link.target.peer, "the lease does not fit the mode %s", o.Mode)
		s.link.fail(err)
		return nil, err
	}
	s.keepAlive(time.Duration(m.LeaseMillis) * time.Millisecond)
	return &m, nil
}

// setOptions replaces the options of the attachment if they are still from.
func (s *Session) setOptions(from, to *AttachOptions) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.options != from {
		return false
	}
	s.options = to
	return true
}

// lease returns the writer's proof and the session's epoch.
func (s *Session) lease() (lease string, epoch wire.Epoch, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.writer {
		return "", "", &wire.Error{
			Code:    wire.CodeNotAttached,
			Message: "this connection is not attached as the session's writer",
			Advice:  "attach as a writer first",
		}
	}
	return s.attached.Lease, s.attached.Epoch, nil
}

// Input gives the agent one input, of any length that the session allows, and
// returns once it is in durable custody: it will be delivered once, in the
// order of acceptance. Choose an inputID of 1 to wire.MaxInputID bytes that no
// other input of the session's life has, write both down, and send the same
// again when the outcome is not known; duplicate then says that it had been
// accepted before.
//
// When ctx ends it between the fragments of an input that is longer than
// wire.MaxFragment, the connection ends too.
//
// Errors: CodeInvalidInput, CodeInputTooLarge, CodeInputIDConflict,
// CodeRuntimeNotWritable, CodeStorageFull, CodeStaleWriter.
func (s *Session) Input(ctx context.Context, inputID string, data []byte) (duplicate bool, err error) {
	lease, _, err := s.lease()
	if err != nil {
		return false, err
	}
	ctx, end := s.start(ctx)
	defer end()
	id, answer := s.link.begin()
	defer s.link.forget(id)
	if err := s.sendInput(ctx, wire.Input{ID: id, Lease: lease, InputID: inputID}, data); err != nil {
		return false, s.explain(err)
	}
	m, err := s.link.await(ctx, "giving input", answer)
	if err != nil {
		return false, s.explain(err)
	}
	accepted, err := answerAs[wire.Accepted](s.link, "giving input", m)
	if err == nil && accepted.InputID != inputID {
		err = violation(s.link.target.peer, "it accepts the input %.64q instead of %.64q", accepted.InputID, inputID)
		s.link.fail(err)
	}
	return accepted.Duplicate, err
}

// inputOverhead bounds what a message of an input has beside its data.
const inputOverhead = 512

// sendInput writes the fragments of one input. All of them are sent, whatever
// happens meanwhile: the bridge answers the last.
func (s *Session) sendInput(ctx context.Context, m wire.Input, data []byte) error {
	select {
	case s.inputs <- struct{}{}:
		defer func() { <-s.inputs }()
	case <-ctx.Done():
		return expired(ctx, "giving input")
	}
	fragment := min(wire.MaxFragment, s.link.limit-inputOverhead)
	for {
		m.Data = data[:min(len(data), fragment)]
		data = data[len(m.Data):]
		m.More = len(data) > 0
		if err := s.link.write(ctx, "giving input", m); err != nil {
			if m.Offset > 0 {
				s.link.fail(err)
			}
			return err
		}
		m.Offset += uint64(len(m.Data))
		if !m.More {
			return nil
		}
	}
}

// Ack says that everything up to and including the sequence is durable on this
// side; the bridge may free it. It never goes backwards, and only what Next or
// NextBatch returned, or the cursor of the attachment, may be acknowledged:
// anything beyond is CodeInvalidAck. Save the cursor first, then acknowledge.
func (s *Session) Ack(ctx context.Context, sequence uint64) error {
	lease, epoch, err := s.lease()
	if err != nil {
		return err
	}
	if seen := s.seen(); sequence > seen {
		return &wire.Error{
			Code:    wire.CodeInvalidAck,
			Message: fmt.Sprintf("record %d can't be acknowledged, the last one that was read is %d", sequence, seen),
			Advice:  "acknowledge a record after it was read and stored",
		}
	}
	ctx, end := s.start(ctx)
	defer end()
	m, err := call[wire.Acked](ctx, s.link, "acknowledging records", func(id uint64) wire.Message {
		return wire.Ack{ID: id, Lease: lease, Cursor: wire.Cursor{Epoch: epoch, Sequence: sequence}}
	})
	if err != nil {
		return s.explain(err)
	}
	if m.Sequence < sequence {
		err := violation(s.link.target.peer, "it acknowledges %d instead of %d", m.Sequence, sequence)
		s.link.fail(err)
		return err
	}
	return nil
}

func (s *Session) seen() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.delivered
}

// CloseInput ends the agent's standard input after everything accepted. It
// returns once the pipe is closed everywhere, which takes as long as the agent
// takes to read what it was given. It is idempotent.
func (s *Session) CloseInput(ctx context.Context) error {
	return s.order(ctx, "closing the input", func(id uint64, lease string) wire.Message {
		return wire.CloseInput{ID: id, Lease: lease}
	})
}

// Signal sends a signal, named without SIG (INT, TERM, HUP, KILL, USR1,
// USR2), to the agent's first process.
func (s *Session) Signal(ctx context.Context, name string) error {
	return s.order(ctx, "signalling the agent", func(id uint64, lease string) wire.Message {
		return wire.Signal{ID: id, Lease: lease, Signal: name}
	})
}

// Terminate ends the agent: standard input is closed, TERM follows after the
// grace, 0 to 60 s, KILL after the grace again. It returns when the order was
// taken; the exit record tells the end.
func (s *Session) Terminate(ctx context.Context, grace time.Duration) error {
	millis, err := graceMillis(grace)
	if err != nil {
		return err
	}
	return s.order(ctx, "terminating the agent", func(id uint64, lease string) wire.Message {
		return wire.Terminate{ID: id, Lease: lease, GraceMillis: millis}
	})
}

// Release gives the writer's seat back and leaves the session running. The
// connection stays as an observer's.
func (s *Session) Release(ctx context.Context) error {
	err := s.order(ctx, "releasing the session", func(id uint64, lease string) wire.Message {
		return wire.Release{ID: id, Lease: lease}
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writer = false
	return nil
}

// order is a writer's call that Done answers.
func (s *Session) order(ctx context.Context, what string, build func(id uint64, lease string) wire.Message) error {
	lease, _, err := s.lease()
	if err != nil {
		return err
	}
	ctx, end := s.start(ctx)
	defer end()
	_, err = call[wire.Done](ctx, s.link, what, func(id uint64) wire.Message { return build(id, lease) })
	return s.explain(err)
}

// Inspect returns the bridge's view of the session. It needs no attachment.
func (s *Session) Inspect(ctx context.Context) (wire.Status, error) {
	ctx, end := s.start(ctx)
	defer end()
	m, err := call[wire.Status](ctx, s.link, "inspecting the session", func(id uint64) wire.Message {
		return wire.Inspect{ID: id}
	})
	return m, s.explain(err)
}

// Ping waits for the bridge to show that it lives. It needs no attachment.
func (s *Session) Ping(ctx context.Context) error {
	ctx, end := s.start(ctx)
	defer end()
	_, err := call[wire.Pong](ctx, s.link, "asking the bridge for a sign of life", func(id uint64) wire.Message {
		return wire.Ping{ID: id}
	})
	return s.explain(err)
}
