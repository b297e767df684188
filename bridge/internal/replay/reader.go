package replay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/index"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

const (
	// MaxBatch is the largest frame of records, in bytes. It is below
	// wire.MaxBridgeFrame so that a control answer never waits for more.
	MaxBatch = 512 << 10

	entryBatch = 2048
	chunkSize  = 256 << 10
	// headRoom is kept in front of the records for the frame's length and the
	// heads of the message, whose size depends on how many records fit.
	headRoom = 4 + wire.RecordsOverhead
)

// ErrOvertaken says that the writer's ack freed what was to be read.
var ErrOvertaken = errors.New("records were freed before they were read")

// Source is what all readers share.
type Source struct {
	Index *index.Index
	// Stdout and Stderr read the spools.
	Stdout, Stderr *custody.File
	// Floor is the sequence up to which records may be freed. It is raised
	// before anything is.
	Floor *atomic.Uint64
	// Exit returns the data of the exit record, once that has a sequence.
	Exit func() []byte
}

// Reader reads records for one client. One goroutine at a time may use it.
type Reader struct {
	src    *Source
	next   uint64 // sequence to send next
	offset uint64 // bytes of it already sent as fragments

	entries []index.Entry
	raw     []byte
	have    []index.Entry // read ahead; have[0] is that of next
	stdout  chunk
	stderr  chunk
	out     []byte
}

// chunk is a part of a spool read ahead. Its bytes stay good when they are
// freed after the read.
type chunk struct {
	from uint64
	data []byte
	buf  []byte
}

// NewReader makes a reader that starts with the given sequence.
func NewReader(src *Source, next uint64) *Reader { return &Reader{src: src, next: next} }

// Idle gives up the buffers while there is nothing to read.
func (r *Reader) Idle() {
	r.entries, r.raw, r.have, r.out = nil, nil, nil, nil
	r.stdout, r.stderr = chunk{}, chunk{}
}

// Frame returns the next frame, of at most max bytes with its length, and the
// sequence of the last record that it completes, or 0. The frame is valid
// until the next call; it is nil when there is nothing to send.
//
// Error: ErrOvertaken, or those of the files.
func (r *Reader) Frame(max int) (frame []byte, last uint64, err error) {
	max = min(max, MaxBatch)
	if cap(r.out) < max {
		r.out = make([]byte, 0, MaxBatch)
	}
	out := r.out[:headRoom]
	n := 0
	for {
		e, err := r.peek()
		if err != nil {
			return nil, 0, err
		}
		if e == nil {
			break
		}
		fragment := min(uint64(wire.MaxFragment), uint64(max-headRoom-wire.RecordOverhead))
		size := min(uint64(e.Length)-r.offset, fragment)
		if len(out)+int(size)+wire.RecordOverhead > max {
			break
		}
		data, err := r.read(e, r.offset, size)
		if err != nil {
			return nil, 0, err
		}
		rec := wire.Record{Sequence: e.Sequence, Stream: e.Stream, Flags: e.Flags, Offset: r.offset, Data: data}
		r.offset += size
		if r.offset < uint64(e.Length) {
			rec.Flags |= wire.FlagMore
		} else {
			last = e.Sequence
			r.next, r.offset = r.next+1, 0
			r.have = r.have[1:]
		}
		out = wire.AppendRecord(out, &rec)
		n++
	}
	r.out = out
	if n == 0 {
		return nil, 0, nil
	}
	return seal(out, false, n), last, nil
}

// seal puts the heads in front of n records, which begin at headRoom.
func seal(out []byte, pending bool, n int) []byte {
	var head [headRoom]byte
	b := append(head[:4], 0x82, 0) // an array of two; its first is the kind
	if pending {
		b[5] = 1
	}
	switch {
	case n < 24:
		b = append(b, 0x80|byte(n))
	case n <= 0xff:
		b = append(b, 0x98, byte(n))
	case n <= 0xffff:
		b = append(b, 0x99, byte(n>>8), byte(n))
	default:
		b = append(b, 0x9a, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	frame := out[headRoom-len(b):]
	binary.BigEndian.PutUint32(b, uint32(len(frame)-4))
	copy(frame, b)
	return frame
}

// peek returns the entry of the next record, or nil.
func (r *Reader) peek() (*index.Entry, error) {
	if len(r.have) > 0 {
		return &r.have[0], nil
	}
	if r.next >= r.src.Index.Next() {
		return nil, nil
	}
	if r.entries == nil {
		r.entries = make([]index.Entry, entryBatch)
		r.raw = make([]byte, entryBatch*index.EntrySize)
	}
	n, err := r.src.Index.Read(r.entries, r.raw, r.next)
	// Freed entries read as zeros, without an error of the kernel.
	if r.src.Floor.Load() >= r.next {
		return nil, ErrOvertaken
	}
	if err != nil {
		return nil, err
	}
	r.have = r.entries[:n]
	return &r.have[0], nil
}

// read returns size bytes of a record from the offset on.
func (r *Reader) read(e *index.Entry, offset, size uint64) ([]byte, error) {
	if e.Stream == wire.StreamExit {
		return r.src.Exit()[offset : offset+size], nil
	}
	c, file := &r.stdout, r.src.Stdout
	if e.Stream == wire.StreamStderr {
		c, file = &r.stderr, r.src.Stderr
	}
	from := e.Start() + offset
	if from < c.from || from+size > c.from+uint64(len(c.data)) {
		// Only numbered bytes are read: what follows may be about to change.
		end := r.have[len(r.have)-1].Ends.Of(e.Stream)
		if c.buf == nil {
			c.buf = make([]byte, chunkSize)
		}
		c.from, c.data = from, c.buf[:min(uint64(len(c.buf)), end-from)]
		if _, err := file.ReadAt(c.data, int64(from)); err != nil {
			c.data = nil
			return nil, fmt.Errorf("record %d: %w", e.Sequence, err)
		}
		if r.src.Floor.Load() >= e.Sequence {
			c.data = nil
			return nil, ErrOvertaken
		}
	}
	return c.data[from-c.from:][:size], nil
}
