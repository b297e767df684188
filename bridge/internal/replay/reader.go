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
	directSize = 16 << 10
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
		if out, err = r.appendRecord(out, e, size); err != nil {
			return nil, 0, err
		}
		n++
		if r.offset += size; r.offset == uint64(e.Length) {
			last = e.Sequence
			r.next, r.offset = r.next+1, 0
			r.have = r.have[1:]
		}
	}
	r.out = out
	if n == 0 {
		return nil, 0, nil
	}
	return seal(out, false, n), last, nil
}

// appendRecord appends size bytes of a record from r.offset on. Long ones are
// read to where they are sent from, short ones by way of a chunk.
func (r *Reader) appendRecord(out []byte, e *index.Entry, size uint64) ([]byte, error) {
	flags := e.Flags
	if r.offset+size < uint64(e.Length) {
		flags |= wire.FlagMore
	}
	out = append(out, 0x85) // an array of five
	out = appendHead(out, 0, e.Sequence)
	out = append(out, byte(e.Stream), byte(flags))
	out = appendHead(out, 0, r.offset)
	out = appendHead(out, 0x40, size)
	if e.Stream == wire.StreamExit {
		return append(out, r.src.Exit()[r.offset:r.offset+size]...), nil
	}
	if size < directSize {
		data, err := r.short(e, size)
		return append(out, data...), err
	}
	at := len(out)
	out = out[:at+int(size)]
	return out, r.fill(out[at:], e, e.Start()+r.offset)
}

// appendHead appends the head of a CBOR item (RFC 8949, section 3).
func appendHead(b []byte, major byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(b, major|byte(n))
	case n <= 0xff:
		return append(b, major|24, byte(n))
	case n <= 0xffff:
		return binary.BigEndian.AppendUint16(append(b, major|25), uint16(n))
	case n <= 0xffffffff:
		return binary.BigEndian.AppendUint32(append(b, major|26), uint32(n))
	default:
		return binary.BigEndian.AppendUint64(append(b, major|27), n)
	}
}

// seal puts the heads in front of n records, which begin at headRoom.
func seal(out []byte, pending bool, n int) []byte {
	var head [headRoom]byte
	b := append(head[:4], 0x82, 0) // an array of two; its first is the kind
	if pending {
		b[5] = 1
	}
	b = appendHead(b, 0x80, uint64(n))
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

// short returns size bytes of a record from r.offset on, by way of the chunk
// of its stream.
func (r *Reader) short(e *index.Entry, size uint64) ([]byte, error) {
	c := &r.stdout
	if e.Stream == wire.StreamStderr {
		c = &r.stderr
	}
	from := e.Start() + r.offset
	if from < c.from || from+size > c.from+uint64(len(c.data)) {
		// Only numbered bytes are read: what follows may be about to change.
		end := r.have[len(r.have)-1].Ends.Of(e.Stream)
		if c.buf == nil {
			c.buf = make([]byte, chunkSize)
		}
		c.from, c.data = from, c.buf[:min(uint64(len(c.buf)), end-from)]
		if err := r.fill(c.data, e, from); err != nil {
			c.data = nil
			return nil, err
		}
	}
	return c.data[from-c.from:][:size], nil
}

// fill reads from the spool of e's stream. Nothing that was freed gets through:
// the floor is raised before anything is, and checked after the read.
func (r *Reader) fill(b []byte, e *index.Entry, from uint64) error {
	file := r.src.Stdout
	if e.Stream == wire.StreamStderr {
		file = r.src.Stderr
	}
	if _, err := file.ReadAt(b, int64(from)); err != nil {
		return fmt.Errorf("record %d: %w", e.Sequence, err)
	}
	if r.src.Floor.Load() >= e.Sequence {
		return ErrOvertaken
	}
	return nil
}
