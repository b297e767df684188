package index

import (
	"encoding/binary"
	"hash/crc32"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

const (
	// EntrySize is the size of an entry in bytes.
	EntrySize = 32
	// headerSize puts entry 1 on a page of its own.
	headerSize = 4096
	// maxSequence is what fits the entry's 56 bits.
	maxSequence = 1<<56 - 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Ends are the places in both streams up to which records are numbered.
type Ends struct {
	Stdout, Stderr uint64
}

// Of returns the end of one stream; 0 for a stream without a spool.
func (e Ends) Of(s wire.Stream) uint64 {
	switch s {
	case wire.StreamStdout:
		return e.Stdout
	case wire.StreamStderr:
		return e.Stderr
	default:
		return 0
	}
}

// Total returns the bytes of both streams up to the ends.
func (e Ends) Total() uint64 { return e.Stdout + e.Stderr }

// plus returns the ends after a record of the given length.
func (e Ends) plus(s wire.Stream, n uint32) Ends {
	switch s {
	case wire.StreamStdout:
		e.Stdout += uint64(n)
	case wire.StreamStderr:
		e.Stderr += uint64(n)
	}
	return e
}

// Entry describes one record.
type Entry struct {
	Sequence uint64
	Stream   wire.Stream
	Flags    wire.Flags
	Length   uint32
	// Ends are the ends of both streams right after this record.
	Ends Ends
}

// Start returns where the record begins in its stream's spool.
func (e *Entry) Start() uint64 { return e.Ends.Of(e.Stream) - uint64(e.Length) }

// encode writes the entry into b, which holds EntrySize bytes; CUSTODY.md has
// the layout.
func (e *Entry) encode(b []byte) {
	_ = b[EntrySize-1]
	binary.LittleEndian.PutUint64(b[0:], e.Ends.Stdout)
	binary.LittleEndian.PutUint64(b[8:], e.Ends.Stderr)
	binary.LittleEndian.PutUint64(b[16:], e.Sequence|uint64(e.Stream)<<56|uint64(e.Flags)<<60)
	binary.LittleEndian.PutUint32(b[24:], e.Length)
	binary.LittleEndian.PutUint32(b[28:], crc32.Checksum(b[:28], castagnoli))
}

// decode reads an entry and reports whether it is whole and well formed.
func (e *Entry) decode(b []byte) bool {
	_ = b[EntrySize-1]
	tag := binary.LittleEndian.Uint64(b[16:])
	e.Ends.Stdout = binary.LittleEndian.Uint64(b[0:])
	e.Ends.Stderr = binary.LittleEndian.Uint64(b[8:])
	e.Sequence = tag & maxSequence
	e.Stream = wire.Stream(tag >> 56 & 0xf)
	e.Flags = wire.Flags(tag >> 60)
	e.Length = binary.LittleEndian.Uint32(b[24:])
	return binary.LittleEndian.Uint32(b[28:]) == crc32.Checksum(b[:28], castagnoli) && e.Sequence != 0
}

// follows reports whether e can stand right after an entry with the given
// sequence and ends. It refuses what no bridge writes: another sequence, ends
// that don't grow by the length, an unknown stream or flag.
func (e *Entry) follows(sequence uint64, ends Ends) bool {
	switch e.Stream {
	case wire.StreamStdout, wire.StreamStderr:
		if e.Flags&^wire.FlagContinued != 0 || e.Length == 0 {
			return false
		}
	case wire.StreamExit:
		if e.Flags != 0 {
			return false
		}
	default:
		return false
	}
	return e.Sequence == sequence+1 && e.Ends == ends.plus(e.Stream, e.Length)
}
