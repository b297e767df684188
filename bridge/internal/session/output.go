package session

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/index"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/journal"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/spool"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// minRoom is the least that is taken from a pipe at a time, so that a writer
// that acks record by record does not make the bridge splice byte by byte.
const minRoom = 64 << 10

// Why output stalls.
var (
	errSpoolFull    = errors.New("the spool is at its limit and waits for an ack")
	errIndexFull    = errors.New("the index is at its limit and waits for an ack")
	errRequestsFull = fmt.Errorf("%d requests or %d bytes of them wait for an answer", maxRequests, maxRequestBytes)
)

// held returns how many bytes of output the spools keep.
func (s *Session) held() int64 {
	return s.stdout.Taken() + s.stderr.Taken() - s.floorBytes.Load() + s.pinnedBytes.Load()
}

// stallReason names a reason for status.
func stallReason(err error) wire.StallReason {
	switch {
	case errors.Is(err, errSpoolFull), errors.Is(err, errIndexFull):
		return wire.StallSpoolLimit
	case errors.Is(err, errRequestsFull):
		return wire.StallRequests
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return wire.StallStorage
	default:
		return wire.StallFailure
	}
}

// Room implements spool.Sink.
func (s *Session) Room() (int64, error) {
	room := int64(s.cfg.SpoolLimit) - s.held()
	if room < minRoom && s.drops() {
		if err := s.dropOldest(0); err != nil {
			return 0, err
		}
		room = int64(s.cfg.SpoolLimit) - s.held()
	}
	if room < minRoom {
		return 0, errSpoolFull
	}
	s.mu.Lock()
	err := s.control.Reserve()
	s.mu.Unlock()
	if err != nil {
		return 0, fmt.Errorf("the control log has no reserve: %w", err)
	}
	return room, nil
}

// Number implements spool.Sink.
func (s *Session) Number(id wire.Stream, pieces []spool.Piece) (int, error) {
	n := len(pieces)
	var short error
	// Entries cost disk too: an agent that prints empty lines must not take
	// more for its index than for its output.
	room := s.indexRoom()
	if room < int64(n) && s.drops() {
		if err := s.dropOldest(s.cfg.SpoolLimit / index.EntrySize / dropPart); err != nil {
			return 0, err
		}
		room = s.indexRoom()
	}
	if room < int64(n) {
		n, short = int(max(0, room)), errIndexFull
	}
	if fit := s.fitRequests(pieces[:n]); fit < n {
		n, short = fit, errRequestsFull
	}
	if n == 0 {
		return 0, short
	}
	var opened []*request
	err := s.index.Append(id, n, func(i int) (uint32, wire.Flags) { return pieces[i].Length, pieces[i].Flags },
		func(first uint64, ends index.Ends) (err error) {
			opened, err = s.logRequests(pieces[:n], first, ends)
			return err
		})
	if err != nil {
		s.forgetRequests(opened)
		return 0, err
	}
	s.wakeClients()
	return n, short
}

// indexRoom returns how many records may be numbered now.
func (s *Session) indexRoom() int64 {
	used := s.index.Next() - 1 - s.floorSequence.Load()
	return int64(s.cfg.SpoolLimit/index.EntrySize) - int64(used)
}

// fitRequests returns how many of the pieces can be numbered before one makes
// a request that has no place.
func (s *Session) fitRequests(pieces []spool.Piece) int {
	more, bytes := 0, int64(0)
	for i, p := range pieces {
		if p.Request == "" {
			continue
		}
		s.mu.Lock()
		full := s.requests.full(more, bytes+int64(p.Length))
		s.mu.Unlock()
		if full {
			return i
		}
		more, bytes = more+1, bytes+int64(p.Length)
	}
	return len(pieces)
}

// logRequests writes the entries of the requests that the pieces make, and
// returns those that are pending from now on.
func (s *Session) logRequests(pieces []spool.Piece, first uint64, ends index.Ends) (opened []*request, err error) {
	end := int64(ends.Stdout)
	for i, p := range pieces {
		end += int64(p.Length)
		if p.Request == "" {
			continue
		}
		opened = append(opened, &request{
			id: p.Request, hash: sha256.Sum256([]byte(p.Request)), sequence: first + uint64(i),
			from: end - int64(p.Length), to: end,
		})
	}
	if len(opened) == 0 {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, q := range opened {
		if s.requests.open[q.id] != nil {
			// The agent uses a name twice; the answer can only mean one. It
			// is told once, or a hostile agent would fill the log.
			if !s.requests.reused {
				s.requests.reused = true
				s.log.Warn("request_id_reused", "sequence", q.sequence)
			}
			opened[i] = nil
			continue
		}
		e := journal.Request{Sequence: q.sequence, End: uint64(q.to), Length: uint64(q.to - q.from), Hash: q.hash}
		if err := s.control.Append(e); err != nil {
			return nil, err
		}
	}
	for _, q := range opened {
		if q != nil && s.requests.open[q.id] == nil {
			delete(s.requests.answered, q.hash)
			s.requests.add(q)
		}
	}
	return opened, nil
}

// forgetRequests takes back requests whose records did not get their sequences:
// they get others, and the requests are logged again. Nobody has seen them.
func (s *Session) forgetRequests(opened []*request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range opened {
		if q != nil && s.requests.open[q.id] == q {
			s.requests.remove(q)
		}
	}
}

// Ack raises the floor: the writer has everything up to the cursor. It returns
// the highest sequence acknowledged so far.
func (s *Session) Ack(c *Client, lease string, cursor wire.Cursor) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mayWrite(c, lease); err != nil {
		return 0, err
	}
	if cursor.Epoch != s.cfg.Epoch {
		return 0, wrongEpoch(cursor.Epoch, s.cfg.Epoch)
	}
	if sent := c.sent.Load(); cursor.Sequence > sent {
		return 0, &wire.Error{
			Code:    wire.CodeInvalidAck,
			Message: fmt.Sprintf("record %d was never sent on this connection; the last one is %d", cursor.Sequence, sent),
			Advice:  "acknowledge only records that were received completely",
		}
	}
	if cursor.Sequence <= s.floor.Acked {
		return s.floor.Acked, nil
	}
	floor := s.floor
	floor.Acked = cursor.Sequence
	// What the writer has may have been dropped before it said so.
	if cursor.Sequence > floor.Sequence {
		e, err := s.index.Entry(cursor.Sequence)
		if err != nil {
			return 0, damaged(err)
		}
		floor.Sequence, floor.Ends = cursor.Sequence, e.Ends
	}
	if err := s.raise(floor); err != nil {
		return 0, err
	}
	s.wakeFree()
	return floor.Acked, nil
}

// PendingRecord returns a pending request's record, or nil when it has been
// answered in the meantime.
func (s *Session) PendingRecord(p wire.PendingRequest) ([]byte, error) {
	from, to, ok := s.pendingRange(p)
	if !ok {
		return nil, nil
	}
	b := make([]byte, to-from)
	if _, err := s.cfg.Set.StdoutRead.ReadAt(b, from); err != nil {
		return nil, damaged(err)
	}
	// An answer may have freed the pages during the read, which then gave
	// zeros.
	if _, _, ok := s.pendingRange(p); !ok {
		return nil, nil
	}
	return b, nil
}

func (s *Session) pendingRange(p wire.PendingRequest) (from, to int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.requests.open[p.RequestID]
	if q == nil || q.sequence != p.Sequence {
		return 0, 0, false
	}
	return q.from, q.to, true
}
