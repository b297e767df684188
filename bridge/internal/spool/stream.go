package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/clock"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

const (
	// transfer is the most that one splice moves, in bytes. A limit may be
	// exceeded by as much, because the two streams don't wait for each other.
	transfer = 1 << 20

	retryFirst = 100 * time.Millisecond
	retryMost  = 5 * time.Second
)

// Piece is a record that the pump has found: it begins where the last one
// ended.
type Piece struct {
	Length uint32
	Flags  wire.Flags
	// Request is the id of the request that the record makes, or "".
	Request string
}

// Sink numbers records. Its methods may be called from two streams at once.
type Sink interface {
	// Number gives the pieces sequences, from the first on, and returns how
	// many got one. With fewer than all, the error says what stands in the
	// way; the pump offers the rest again.
	Number(s wire.Stream, pieces []Piece) (int, error)
	// Room returns how many bytes may be taken now. With 0, the error says
	// why.
	Room() (int64, error)
}

// Config is what a stream is made of. The stream owns Pipe; the files belong
// to the caller, who closes them after Close.
type Config struct {
	ID     wire.Stream
	Pipe   *custody.Pipe
	Splice *custody.File
	Read   *custody.File
	// MaxRecord is the longest record that is numbered as one, in bytes.
	MaxRecord int64
	Sink      Sink
	// Request, if set, returns the id of the request that a record of at most
	// MaxRequest bytes makes.
	Request    func(record []byte) string
	MaxRequest int64
	// OnStall is called when the stream stops being read (with the reason)
	// and when it goes on (with nil). It must not block.
	OnStall func(error)
}

// Stream is one stream of output.
type Stream struct {
	Config

	taken  atomic.Int64          // bytes in the spool: the splice description's offset
	stall  atomic.Pointer[error] // why the stream is not read
	active atomic.Int64          // time of the last transfer, Unix nanoseconds
	resume chan struct{}
	stop   chan struct{}
	done   chan struct{}
	once   sync.Once

	// Of the pump alone:
	numbered int64 // where the last numbered record ends
	searched int64 // up to where there is no further delimiter
	refused  bool  // the last splice failed
	pieces   []Piece
	buf      []byte
	scratch  []byte // a record that began in an earlier chunk
}

// maxPieces is how many records are numbered at once.
const maxPieces = 4096

// New recovers a stream: its position is the splice description's offset, and
// numbered is where the index says its last record ends.
func New(c Config, numbered uint64) (*Stream, error) {
	taken, err := c.Splice.Offset()
	if err != nil {
		return nil, err
	}
	if taken < int64(numbered) {
		return nil, fmt.Errorf("the spool holds %d bytes and the index describes %d", taken, numbered)
	}
	s := &Stream{
		Config: c, numbered: int64(numbered), searched: int64(numbered),
		resume: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		pieces: make([]Piece, 0, maxPieces), buf: make([]byte, transfer),
	}
	s.taken.Store(taken)
	s.active.Store(int64(clock.Now()))
	return s, nil
}

// Taken returns how many bytes were taken from the pipe since the session
// began.
func (s *Stream) Taken() int64 { return s.taken.Load() }

// Stalled reports whether the stream is not being read.
func (s *Stream) Stalled() bool { return s.stall.Load() != nil }

// StallReason returns why the stream is not being read, or nil.
func (s *Stream) StallReason() error {
	if reason := s.stall.Load(); reason != nil {
		return *reason
	}
	return nil
}

// Done is closed when the pump has ended: at the stream's end, or by Close.
func (s *Stream) Done() <-chan struct{} { return s.done }

// Quiet reports whether the pump has nothing to do and has had nothing for the
// given time: its pipe is empty and everything taken was looked at.
func (s *Stream) Quiet(d time.Duration) bool {
	if s.Stalled() || clock.Now()-time.Duration(s.active.Load()) < d {
		return false
	}
	n, err := s.Pipe.Buffered()
	return err != nil || n == 0
}

// Resume tells a stalled pump that something was freed.
func (s *Stream) Resume() {
	select {
	case s.resume <- struct{}{}:
	default:
	}
}

// Close ends the pump, waits for it and closes the pipe. Bytes in the pipe
// stay there for whoever holds a duplicate.
func (s *Stream) Close() {
	s.once.Do(func() {
		close(s.stop)
		s.Pipe.Close()
	})
	<-s.done
}

// Recover numbers the whole records that an earlier bridge took and did not
// number. It is called once, before Run. What the sink refuses now, the pump
// offers again.
func (s *Stream) Recover() error {
	err := s.scan()
	if errors.Is(err, errStalled) {
		return nil
	}
	return err
}

// errStalled wraps the reasons of the sink.
var errStalled = errors.New("the stream waits")

// Run is the pump. It returns at the end of the stream or by Close.
func (s *Stream) Run() {
	defer close(s.done)
	wait := retryFirst
	for {
		err := s.step()
		switch {
		case err == nil:
			s.setStall(nil)
			wait = retryFirst
		case !errors.Is(err, errStalled) && (errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed)):
			s.setStall(nil)
			return
		default:
			s.setStall(err)
			if !s.pause(wait) {
				return
			}
			wait = min(2*wait, retryMost)
		}
	}
}

// step looks at what was taken and then takes more.
func (s *Stream) step() error {
	if err := s.scan(); err != nil {
		return err
	}
	room, err := s.Sink.Room()
	if err != nil {
		return err
	}
	// There is room, and the splice may have to wait for the agent. One that
	// failed did not have to, and won't the next time.
	if !s.refused {
		s.setStall(nil)
	}
	n, err := s.Pipe.SpliceTo(s.Splice, int(min(room, transfer)))
	s.refused = err != nil
	if err != nil {
		return err
	}
	s.taken.Add(int64(n))
	s.active.Store(int64(clock.Now()))
	return nil
}

// pause waits for Resume or the time; false means that the pump has to end.
func (s *Stream) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-s.resume:
	case <-t.C:
	case <-s.stop:
		return false
	}
	return true
}

func (s *Stream) setStall(reason error) {
	now := &reason
	if reason == nil {
		now = nil
	}
	if before := s.stall.Swap(now); (before == nil) != (now == nil) && s.OnStall != nil {
		s.OnStall(reason)
	}
}

// Finish numbers what is left after the pump has ended, the partial line at
// the end included. It waits while the sink refuses, until stop is closed,
// and returns false then.
func (s *Stream) Finish(stop <-chan struct{}) bool {
	<-s.done
	wait := retryFirst
	for {
		err := s.finishOnce()
		if err == nil {
			s.setStall(nil)
			return true
		}
		s.setStall(err)
		t := time.NewTimer(wait)
		select {
		case <-s.resume:
		case <-t.C:
		case <-stop:
			t.Stop()
			return false
		}
		t.Stop()
		wait = min(2*wait, retryMost)
	}
}

func (s *Stream) finishOnce() error {
	if err := s.scan(); err != nil {
		return err
	}
	end := s.taken.Load()
	if end == s.numbered {
		return nil
	}
	p, err := s.piece(s.numbered, end, nil, end)
	if err != nil {
		return err
	}
	s.pieces = append(s.pieces[:0], p)
	return s.flush()
}

// scan finds and numbers the records in what was taken and not yet searched.
func (s *Stream) scan() error {
	taken := s.taken.Load()
	for s.searched < taken {
		chunk := s.buf[:min(int64(len(s.buf)), taken-s.searched)]
		if _, err := s.Read.ReadAt(chunk, s.searched); err != nil {
			return fmt.Errorf("%w: %w", errStalled, err)
		}
		if err := s.scanChunk(chunk, s.searched); err != nil {
			return err
		}
	}
	return nil
}

// scanChunk numbers the records that end in a chunk, which stands at base.
func (s *Stream) scanChunk(chunk []byte, base int64) error {
	s.pieces = s.pieces[:0]
	start := s.numbered // of the record at hand
	at := 0
	for at < len(chunk) {
		lf := bytes.IndexByte(chunk[at:], '\n')
		end := base + int64(len(chunk))
		if lf >= 0 {
			end = base + int64(at+lf) + 1
		}
		for end-start > s.MaxRecord {
			s.pieces = append(s.pieces, Piece{Length: uint32(s.MaxRecord), Flags: wire.FlagContinued})
			start += s.MaxRecord
			if err := s.flushFull(); err != nil {
				return err
			}
		}
		if lf < 0 {
			break
		}
		p, err := s.piece(start, end, chunk, base)
		if err != nil {
			return err
		}
		s.pieces = append(s.pieces, p)
		start = end
		at += lf + 1
		if err := s.flushFull(); err != nil {
			return err
		}
	}
	if err := s.flush(); err != nil {
		return err
	}
	s.searched = base + int64(len(chunk))
	return nil
}

// piece describes a whole record. chunk stands at base and holds the record's
// end; its beginning may lie before it.
func (s *Stream) piece(start, end int64, chunk []byte, base int64) (Piece, error) {
	p := Piece{Length: uint32(end - start)}
	if s.Request == nil || end-start > s.MaxRequest {
		return p, nil
	}
	record := s.scratch
	if start >= base {
		record = chunk[start-base : end-base]
	} else {
		record = slices.Grow(record[:0], int(end-start))[:end-start]
		s.scratch = record
		if _, err := s.Read.ReadAt(record, start); err != nil {
			return Piece{}, fmt.Errorf("%w: %w", errStalled, err)
		}
	}
	p.Request = s.Request(record)
	return p, nil
}

func (s *Stream) flushFull() error {
	if len(s.pieces) < maxPieces {
		return nil
	}
	return s.flush()
}

// flush numbers the pieces. When the sink takes fewer, the search starts again
// at the first that it did not take.
func (s *Stream) flush() error {
	if len(s.pieces) == 0 {
		return nil
	}
	n, err := s.Sink.Number(s.ID, s.pieces)
	for _, p := range s.pieces[:n] {
		s.numbered += int64(p.Length)
	}
	s.pieces = s.pieces[:0]
	if err != nil {
		s.searched = s.numbered
		return fmt.Errorf("%w: %w", errStalled, err)
	}
	return nil
}
