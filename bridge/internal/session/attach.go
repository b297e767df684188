package session

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"sync/atomic"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/clock"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/journal"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Peer is what the session needs of a connection. Both methods are called with
// locks held and must not block.
type Peer interface {
	// Wake says that there may be new records.
	Wake()
	// Fence tells the writer that it lost its seat; the generation is its own
	// when its lease expired. What it has begun to send is to be forgotten.
	Fence(generation uint64)
}

// Client is an attached connection.
type Client struct {
	peer Peer
	name string
	// lease is that of the writer; it is not changed after Attach.
	lease lease
	// sent is the highest sequence that the client may acknowledge.
	sent atomic.Uint64
}

// Sent notes that every record up to the sequence is about to be sent. It is
// called before the client can see the record.
func (c *Client) Sent(sequence uint64) { c.sent.Store(sequence) }

// Attach joins a connection to the session. Records start with next. Errors:
// CodeInvalidCursor, CodeReplayGap, CodeWriterAlreadyAttached,
// CodeStorageFull.
//
// A writer waits until the signals are done that a writer before it has sent
// (at most brokerTimeout): none takes effect after its takeover.
func (s *Session) Attach(peer Peer, m wire.Attach) (c *Client, answer wire.Attached, next uint64, err error) {
	if m.Mode == wire.ModeWriter {
		s.signals.Lock()
		defer s.signals.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next, mayAck, err := s.startOf(m)
	if err != nil {
		return nil, wire.Attached{}, 0, err
	}
	c = &Client{peer: peer, name: m.Client}
	c.sent.Store(mayAck)
	if m.Mode == wire.ModeWriter {
		c.lease.length = s.leaseOf(m)
		if err := s.takeSeat(c, m.Takeover); err != nil {
			return nil, wire.Attached{}, 0, err
		}
		answer.Lease, answer.LeaseMillis = s.proof, uint64(c.lease.length.Milliseconds())
	}
	s.clientsMu.Lock()
	s.clients[c] = struct{}{}
	s.clientsMu.Unlock()

	answer.ID, answer.Session, answer.Epoch = m.ID, s.cfg.Session, s.cfg.Epoch
	answer.Generation = s.generation
	answer.NextSequence = s.index.Next()
	answer.LostBefore, answer.Acked = s.floor.Sequence+1, s.floor.Acked
	answer.Pending = s.requests.list(answer.NextSequence)
	answer.InputClosed, answer.Exit = s.closed, s.visibleExit()
	return c, answer, next, nil
}

// startOf returns the sequence to start with, and up to which sequence the
// client may acknowledge right away: a cursor claims that what is below it is
// durable, the other places claim nothing.
func (s *Session) startOf(m wire.Attach) (next, mayAck uint64, err error) {
	end, floor := s.index.Next(), s.floor.Sequence
	switch m.From {
	case wire.FromOldest:
		return floor + 1, floor, nil
	case wire.FromLive:
		return end, floor, nil
	}
	switch c := *m.Cursor; {
	case c.Epoch != s.cfg.Epoch:
		return 0, 0, wrongEpoch(c.Epoch, s.cfg.Epoch)
	case c.Sequence >= end:
		return 0, 0, &wire.Error{
			Code:    wire.CodeInvalidCursor,
			Message: fmt.Sprintf("the cursor is at record %d and the last one is %d", c.Sequence, end-1),
			Advice:  "the cursor is not of this session; attach at the oldest record",
		}
	case c.Sequence < floor:
		return 0, 0, replayGap(floor + 1)
	default:
		return c.Sequence + 1, c.Sequence, nil
	}
}

// takeSeat makes c the writer. The entry of its generation is in the log
// before anyone can see it, so that inputs are ordered against it.
func (s *Session) takeSeat(c *Client, takeover bool) error {
	s.expire()
	if s.seat != nil && !takeover {
		return s.taken()
	}
	proof := newProof()
	if err := s.control.Append(journal.Generation{Number: s.generation + 1, Client: c.name}); err != nil {
		return storageFull("the new writer", err)
	}
	s.generation++
	if s.seat != nil {
		s.seat.peer.Fence(s.generation)
	}
	c.lease.heard.Store(int64(clock.Now()))
	s.seat, s.proof, s.seated, s.released = c, proof, true, false
	wake(s.leaseWake)
	wake(s.seatWake)
	return nil
}

// newProof makes what the writer shows with each request.
func newProof() string {
	var b [16]byte
	// It never fails (crypto/rand).
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// mayWrite checks the right of a request. A lease is bound to the connection
// that got it.
func (s *Session) mayWrite(c *Client, lease string) error {
	s.expire()
	if s.seat == c && subtle.ConstantTimeCompare([]byte(lease), []byte(s.proof)) == 1 {
		return nil
	}
	return &wire.Error{
		Code:    wire.CodeStaleWriter,
		Message: "the lease is not that of the session's writer on this connection",
		Advice:  "attach again as writer to get a new lease; nothing was changed",
	}
}

// MayWrite checks a lease without doing anything, so that fragments of a stale
// writer are not collected. Error: CodeStaleWriter.
func (s *Session) MayWrite(c *Client, lease string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mayWrite(c, lease)
}

// Release gives the seat back; the client goes on as an observer. Error:
// CodeStaleWriter.
func (s *Session) Release(c *Client, lease string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mayWrite(c, lease); err != nil {
		return err
	}
	s.released = isClosed(s.ended) && s.floor.Acked+1 == s.index.Next()
	s.vacate()
	return nil
}

// Detach forgets a connection that has ended, and its seat with it.
func (s *Session) Detach(c *Client) {
	s.mu.Lock()
	if s.seat == c {
		s.vacate()
	}
	s.mu.Unlock()
	s.clientsMu.Lock()
	delete(s.clients, c)
	s.clientsMu.Unlock()
}

// Gap returns the error for a reader that was overtaken by the floor.
func (s *Session) Gap() *wire.Error { return replayGap(s.floorSequence.Load() + 1) }

func replayGap(lostBefore uint64) *wire.Error {
	return &wire.Error{
		Code:       wire.CodeReplayGap,
		Message:    fmt.Sprintf("records before %d are gone: a writer acknowledged them, or they were dropped at the spool's limit", lostBefore),
		Advice:     "attach at the oldest record and treat the gap as lost",
		LostBefore: lostBefore,
	}
}

func wrongEpoch(got, want wire.Epoch) *wire.Error {
	return &wire.Error{
		Code:    wire.CodeInvalidCursor,
		Message: fmt.Sprintf("the cursor is of epoch %.16q, the session is in epoch %q", string(got), string(want)),
		Advice:  "the cursor is not of this session; attach at the oldest record",
	}
}

func storageFull(what string, cause error) *wire.Error {
	return &wire.Error{
		Code:    wire.CodeStorageFull,
		Message: what + " could not be stored, and nothing was changed",
		Advice:  "free disk space for the session's spool, then send it again",
		Err:     cause,
	}
}
