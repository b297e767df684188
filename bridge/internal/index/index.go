package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
	"sync/atomic"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

const (
	magic   = "PSBINDEX"
	version = 1

	// reserveStep is how much disk is allocated ahead at a time, and
	// reserveLow when the next step is due, in bytes.
	reserveStep = 1 << 20
	reserveLow  = 256 << 10

	// MaxBatch is the largest number of records in one Append.
	MaxBatch = 4096
)

// ErrCorrupt says that a file is not what this bridge or an earlier one wrote.
var ErrCorrupt = errors.New("the index file is damaged or of another session")

// Index is the open file. Append has one caller at a time; everything else may
// be called concurrently.
type Index struct {
	file *custody.File

	mu       sync.Mutex
	ends     Ends
	buf      []byte
	reserved int64

	next atomic.Uint64 // sequence that the next record will get
}

// Floor is what the control log says is freed: entries up to Sequence may be
// zeros, and Ends are the ends of both streams there.
type Floor struct {
	Sequence uint64
	Ends     Ends
}

// Open recovers the index: it keeps the whole entries after the floor up to
// the first that is torn or does not follow, and drops the rest. An empty file
// is the case without entries. It takes no ownership of the file. Errors:
// ErrCorrupt, or those of the file.
func Open(file *custody.File, epoch wire.Epoch, floor Floor) (*Index, error) {
	x := &Index{file: file, buf: make([]byte, 0, MaxBatch*EntrySize)}
	if err := x.openHeader(epoch); err != nil {
		return nil, err
	}
	next, ends, err := x.scan(floor)
	if err != nil {
		return nil, err
	}
	x.ends = ends
	x.next.Store(next)
	// Entries after a torn one can only come from a host crash, but a later
	// recovery must never take them for its own.
	if err := file.Truncate(place(next)); err != nil {
		return nil, err
	}
	x.reserved = place(next)
	return x, nil
}

// header is magic, version, entry size, epoch, checksum; the rest of its page
// is zero.
func header(epoch wire.Epoch) []byte {
	b := make([]byte, headerSize)
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], version)
	binary.LittleEndian.PutUint32(b[12:], EntrySize)
	copy(b[16:32], epoch)
	binary.LittleEndian.PutUint32(b[32:], crc32.Checksum(b[:32], castagnoli))
	return b
}

func (x *Index) openHeader(epoch wire.Epoch) error {
	got := make([]byte, headerSize)
	n, err := x.file.ReadAt(got, 0)
	if err != nil && err != io.EOF {
		return err
	}
	want := header(epoch)
	switch {
	case n == 0:
		_, err := x.file.WriteAt(want, 0)
		return err
	case n == headerSize && string(got) == string(want):
		return nil
	default:
		return fmt.Errorf("%w: its header does not belong to epoch %s", ErrCorrupt, epoch)
	}
}

func (x *Index) scan(floor Floor) (next uint64, ends Ends, err error) {
	sequence, ends := floor.Sequence, floor.Ends
	buf := make([]byte, MaxBatch*EntrySize)
	for {
		n, err := x.file.ReadAt(buf, place(sequence+1))
		if err != nil && err != io.EOF {
			return 0, Ends{}, err
		}
		whole := n / EntrySize
		for i := range whole {
			var e Entry
			if !e.decode(buf[i*EntrySize:]) || !e.follows(sequence, ends) {
				return sequence + 1, ends, nil
			}
			sequence, ends = e.Sequence, e.Ends
		}
		if whole < MaxBatch {
			return sequence + 1, ends, nil
		}
	}
}

// place returns the file offset of a sequence's entry.
func place(sequence uint64) int64 { return headerSize + int64(sequence-1)*EntrySize }

// Next returns the sequence that the next record will get. Every sequence
// below it is readable, unless freed.
func (x *Index) Next() uint64 { return x.next.Load() }

// Ends returns the ends of both streams after the last numbered record.
func (x *Index) Ends() Ends {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.ends
}

// Append numbers n records of one stream, at most MaxBatch; piece tells each
// one's length and flags, and each begins where the last one ended. It writes
// their entries and only then makes them visible. before, if set, is called
// with the sequence of the first and the ends so far, once there is room and
// ahead of the write, to log what must not become visible unlogged. Its error, or the file's, means
// that nothing was numbered.
func (x *Index) Append(s wire.Stream, n int, piece func(i int) (uint32, wire.Flags), before func(first uint64, ends Ends) error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	first := x.next.Load()
	if err := x.reserve(place(first + uint64(n))); err != nil {
		return err
	}
	if before != nil {
		if err := before(first, x.ends); err != nil {
			return err
		}
	}
	buf := x.buf[:n*EntrySize]
	e := Entry{Stream: s, Ends: x.ends}
	for i := range n {
		e.Length, e.Flags = piece(i)
		e.Sequence = first + uint64(i)
		e.Ends = e.Ends.plus(s, e.Length)
		e.encode(buf[i*EntrySize:])
	}
	if _, err := x.file.WriteAt(buf, place(first)); err != nil {
		return err
	}
	x.ends = e.Ends
	x.next.Store(first + uint64(n))
	return nil
}

// reserve keeps disk allocated ahead of the entries. It fails only when the
// entries up to end themselves have no room.
func (x *Index) reserve(end int64) error {
	if x.reserved-end >= reserveLow {
		return nil
	}
	from := x.reserved
	if err := x.file.Reserve(from, end-from+reserveStep); err != nil {
		if end <= x.reserved {
			return nil
		}
		return err
	}
	x.reserved = end + reserveStep
	return nil
}

// Read reads entries into dst, from the given sequence on and as many as there
// are, and returns how many. The caller must check afterwards that the floor
// has not passed the first: freed entries read as zeros, and then the result
// is ErrCorrupt.
func (x *Index) Read(dst []Entry, raw []byte, sequence uint64) (int, error) {
	next := x.next.Load()
	if sequence >= next || len(dst) == 0 {
		return 0, nil
	}
	n := int(min(uint64(len(dst)), uint64(len(raw)/EntrySize), next-sequence))
	raw = raw[:n*EntrySize]
	if _, err := x.file.ReadAt(raw, place(sequence)); err != nil {
		return 0, err
	}
	for i := range n {
		if !dst[i].decode(raw[i*EntrySize:]) || dst[i].Sequence != sequence+uint64(i) {
			return 0, ErrCorrupt
		}
	}
	return n, nil
}

// Entry reads one entry.
func (x *Index) Entry(sequence uint64) (Entry, error) {
	var e [1]Entry
	var raw [EntrySize]byte
	n, err := x.Read(e[:], raw[:], sequence)
	if err == nil && n == 0 {
		err = fmt.Errorf("there is no record %d", sequence)
	}
	return e[0], err
}

// Free gives back the disk of whole pages of entries, from the sequence from
// on and below the sequence to. The entry of to itself stays, so that recovery
// can look at the floor.
func (x *Index) Free(from, to uint64, pageSize int64) error {
	start := (headerSize + pageSize - 1) / pageSize * pageSize
	if from > 0 {
		start = max(start, place(from)/pageSize*pageSize)
	}
	end := place(to) / pageSize * pageSize
	return x.file.Punch(start, end-start)
}
