package flow

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// Most lines are short; every longLines-th or so has up to longest bytes.
const (
	shortest  = 0
	usual     = 400
	longLines = 40
	longest   = 64 << 10
)

// Position is a place in a stream: what came before it.
type Position struct {
	Lines uint64 `json:"lines"`
	Bytes uint64 `json:"bytes"`
}

// Stream is one endless stream of lines. Streams of different names are
// different. It knows what comes next; the zero Position is the beginning.
type Stream struct {
	Name uint64
	At   Position
}

// Line returns the next line without moving: the stream's name, the number and
// the offset of the line, then bytes of all values but LF, then LF.
func (s *Stream) Line() []byte {
	rng := rand.New(rand.NewPCG(s.Name, s.At.Lines))
	n := shortest + rng.IntN(usual)
	if rng.IntN(longLines) == 0 {
		n = rng.IntN(longest)
	}
	line := fmt.Appendf(nil, "%x %d %d ", s.Name, s.At.Lines, s.At.Bytes)
	head := len(line)
	line = append(line, make([]byte, n+8)...)
	for at := head; at < head+n; at += 8 {
		binary.LittleEndian.PutUint64(line[at:], rng.Uint64())
	}
	line = line[:head+n]
	for i := head; i < len(line); i++ {
		if line[i] == '\n' {
			line[i] = 0
		}
	}
	return append(line, '\n')
}

// Advance moves behind the line that Line gave.
func (s *Stream) Advance(line []byte) {
	s.At.Lines++
	s.At.Bytes += uint64(len(line))
}

// Next returns the next line and moves behind it.
func (s *Stream) Next() []byte {
	line := s.Line()
	s.Advance(line)
	return line
}

// Check compares a line with the one that must come, and moves on if it is the
// one. The error says what became of it.
func (s *Stream) Check(line []byte) error {
	want := s.Line()
	if bytes.Equal(line, want) {
		s.Advance(want)
		return nil
	}
	var name, number, offset uint64
	// A line that does not begin as one has no number.
	if _, err := fmt.Sscanf(string(line[:min(len(line), 64)]), "%x %d %d ", &name, &number, &offset); err != nil {
		return fmt.Errorf("line %d at offset %d is %.80q, of %d bytes, which begins as no line", s.At.Lines, s.At.Bytes, line, len(line))
	}
	switch {
	case name != s.Name:
		return fmt.Errorf("a line of stream %x is in the place of line %d of stream %x", name, s.At.Lines, s.Name)
	case number > s.At.Lines:
		return fmt.Errorf("%d lines and %d bytes are lost: line %d follows on line %d", number-s.At.Lines, offset-s.At.Bytes, number, int64(s.At.Lines)-1)
	case number < s.At.Lines:
		return fmt.Errorf("line %d at offset %d comes again, or late, in the place of line %d at %d", number, offset, s.At.Lines, s.At.Bytes)
	}
	same := 0
	for same < min(len(line), len(want)) && line[same] == want[same] {
		same++
	}
	return fmt.Errorf("line %d at offset %d has %d bytes instead of %d, and is another from byte %d on", number, s.At.Bytes, len(line), len(want), same)
}
