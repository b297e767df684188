package client

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Defaults of SessionConfig.
const (
	DefaultMaxRecord = 128 << 20
	DefaultReadAhead = 1 << 20
	DefaultMaxBuffer = 64 << 20
)

// SessionConfig bounds what a connection to a session may use. The zero value
// means the defaults.
type SessionConfig struct {
	// MaxRecord is the longest record that is reassembled, in bytes, and the
	// bound of all pending requests together. A longer one ends the
	// connection with CodeRecordTooLarge.
	MaxRecord int
	// ReadAhead is about how many bytes are read from the socket and held for
	// the consumer. When it is reached, the bridge has to wait.
	ReadAhead int
	// MaxBuffer is the same while a call waits for its answer, which may
	// stand behind records. When it is reached, the call waits for the
	// consumer.
	MaxBuffer int
}

// Session is one connection to a session's bridge.
//
// Its calls (Input, Ack and the others) may be made from several goroutines.
// Records are read by one goroutine at a time, with Next or NextBatch. The
// connection reads ahead only as far as SessionConfig allows, and answers come
// through the same socket: a program that makes calls keeps reading records,
// or drains them between its calls.
type Session struct {
	link   *link
	inbox  *inbox
	fenced chan struct{}
	// inputs is held while the fragments of one input are written.
	inputs chan struct{}

	// The reader's own.
	stream stream
	held   *wire.Attached
	heldID uint64
	// generation is that of the attachment.
	generation uint64

	mu        sync.Mutex
	options   *AttachOptions
	attached  *wire.Attached
	writer    bool
	pending   []Record
	delivered uint64

	// The consumer's own, under reading.
	reading sync.Mutex
	current *batch
	at      int
}

// DialSession connects to a session's bridge with the default limits. The
// error has CodeSessionUnreachable when nobody answers at the path.
func DialSession(ctx context.Context, socketPath string) (*Session, error) {
	return SessionConfig{}.Dial(ctx, socketPath)
}

// Dial connects to a session's bridge.
func (c SessionConfig) Dial(ctx context.Context, socketPath string) (*Session, error) {
	l, err := dial(ctx, sessionTarget, socketPath)
	if err != nil {
		return nil, err
	}
	s := c.newSession(l)
	go s.read()
	return s, nil
}

func (c SessionConfig) newSession(l *link) *Session {
	low := orDefault(c.ReadAhead, DefaultReadAhead)
	return &Session{
		link:   l,
		inbox:  newInbox(low, max(low, orDefault(c.MaxBuffer, DefaultMaxBuffer))),
		stream: stream{max: orDefault(c.MaxRecord, DefaultMaxRecord)},
		fenced: make(chan struct{}),
		inputs: make(chan struct{}, 1),
	}
}

func orDefault(n, otherwise int) int {
	if n <= 0 {
		return otherwise
	}
	return n
}

// Close ends the connection and its goroutine. The session and its agent live
// on. Data that NextBatch returned stays valid.
func (s *Session) Close() error {
	s.inbox.abandon(errClosed)
	return s.link.close()
}

// Fenced returns a channel that is closed when this writer has lost its seat:
// a newer one took over, or the lease expired. Next tells which.
func (s *Session) Fenced() <-chan struct{} { return s.fenced }

// read is the connection's reader. Close ends it.
func (s *Session) read() {
	defer close(s.link.finished)
	err := s.readFrames()
	s.inbox.finish(err)
	s.link.fail(err)
}

func (s *Session) readFrames() error {
	for s.inbox.awaitRoom(s.link.done) {
		b := s.inbox.spare()
		payload, err := wire.ReadFrame(s.link.in, wire.MaxBridgeFrame, b.frame)
		if err != nil {
			return lost(s.link.target.peer, err)
		}
		b.frame = payload
		if err := s.handle(b); err != nil {
			return err
		}
	}
	return s.link.failure()
}

// handle takes one frame, and with it the batch.
func (s *Session) handle(b *batch) error {
	m, id, err := wire.DecodeRequest(wire.BridgeReplies, b.frame)
	if err != nil {
		return lost(s.link.target.peer, err)
	}
	if r, ok := m.(wire.Records); ok {
		return s.handleRecords(b, r)
	}
	s.inbox.recycle(b)
	switch m := m.(type) {
	case wire.ErrorMessage:
		if id == 0 {
			return m.Err()
		}
	case wire.Fenced:
		return s.handleFenced(m.Generation)
	case wire.Attached:
		return s.handleAttached(id, &m)
	}
	return s.link.deliver(id, m)
}

func (s *Session) handleRecords(b *batch, m wire.Records) error {
	if err := b.addRecords(&s.stream, m); err != nil {
		return err
	}
	if len(b.records) == 0 {
		s.inbox.recycle(b)
	} else {
		s.inbox.put(b)
	}
	if s.stream.exited {
		s.inbox.finish(io.EOF)
	}
	return s.release()
}

func (s *Session) handleFenced(generation uint64) error {
	select {
	case <-s.fenced:
		return violation(s.link.target.peer, "it fences twice")
	default:
	}
	close(s.fenced)
	if generation == s.generation {
		s.inbox.finish(ErrLeaseExpired)
	} else {
		s.inbox.finish(ErrFenced)
	}
	return nil
}

// handleAttached sets the stream up before the first record can come, and
// holds the answer back until the pending requests are here.
func (s *Session) handleAttached(id uint64, m *wire.Attached) error {
	s.mu.Lock()
	options := s.options
	s.mu.Unlock()
	if options == nil || s.stream.next != 0 {
		return violation(s.link.target.peer, "it answers an attach that was not made")
	}
	if err := s.stream.begin(options, m); err != nil {
		return err
	}
	s.held, s.heldID, s.generation = m, id, m.Generation
	if s.stream.exited {
		s.inbox.finish(io.EOF)
	}
	return s.release()
}

// release gives the held answer to Attach once it is complete.
func (s *Session) release() error {
	if s.held == nil || len(s.stream.promised) > 0 {
		return nil
	}
	m, id := s.held, s.heldID
	s.held = nil
	s.mu.Lock()
	s.attached, s.pending = m, s.stream.shown
	s.writer = m.Lease != ""
	s.delivered = s.stream.next - 1
	s.mu.Unlock()
	return s.link.deliver(id, *m)
}

// PendingRecords returns the records of the requests that waited for an answer
// when Attach returned, in the order in which the bridge told them. They don't
// move the cursor: one that stands behind it comes only here, one after it
// comes from Next again, with the same sequence.
func (s *Session) PendingRecords() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.pending)
}

// sessionTimeout is how long a call may take when its context has no deadline.
const sessionTimeout = 30 * time.Second

// start is at the head of each call: end has to be called after it.
func (s *Session) start(ctx context.Context) (_ context.Context, end func()) {
	ctx, cancel := bound(ctx, sessionTimeout)
	s.inbox.enter()
	return ctx, func() {
		s.inbox.leave()
		cancel()
	}
}

// explain adds to a timeout that the consumer did not read.
func (s *Session) explain(err error) error {
	if e, ok := err.(*wire.Error); ok && e.Code == wire.CodeTimeout && s.inbox.full() {
		e.Advice = "read records while calls are made: the answer may stand behind records that nobody took"
	}
	return err
}
