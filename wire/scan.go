package wire

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// CBOR major types (RFC 8949, section 3.1), shifted to where they stand in an
// item's first byte.
const (
	majorUint   = 0 << 5
	majorNegInt = 1 << 5
	majorBytes  = 2 << 5
	majorText   = 3 << 5
	majorArray  = 4 << 5
	majorMap    = 5 << 5
	majorTag    = 6 << 5
	majorSimple = 7 << 5

	majorMask = 7 << 5
	infoMask  = 31

	itemFalse = majorSimple | 20
	itemTrue  = majorSimple | 21
)

// scanner walks CBOR without allocating. The first failure sticks, and every
// read after it returns zero, so that callers check once.
type scanner struct {
	data []byte
	pos  int
	err  *Error
}

func (s *scanner) failf(format string, args ...any) {
	if s.err == nil {
		s.err = invalid(fmt.Sprintf("byte %d: ", s.pos)+fmt.Sprintf(format, args...), nil)
	}
}

func (s *scanner) rest() int { return len(s.data) - s.pos }

// head reads an item's first byte and its argument, and refuses what core
// deterministic encoding does: indefinite lengths and any form of an argument
// but the shortest (RFC 8949, section 4.2.1).
func (s *scanner) head() (major byte, n uint64) {
	if s.err != nil {
		return 0, 0
	}
	if s.rest() == 0 {
		s.failf("the item is cut off")
		return 0, 0
	}
	first := s.data[s.pos]
	major, info := first&majorMask, first&infoMask
	switch {
	case major == majorSimple:
		if first != itemFalse && first != itemTrue {
			s.failf("there are no floats, null, undefined or simple values but false and true")
			return 0, 0
		}
	case info > 27:
		s.failf("indefinite lengths and reserved forms are forbidden")
		return 0, 0
	case info >= 24:
		return major, s.argument(info - 24)
	}
	s.pos++
	return major, uint64(info)
}

// argument reads the head's argument of 2^power bytes, and moves past the head.
func (s *scanner) argument(power byte) (n uint64) {
	size := 1 << power
	if s.rest() < 1+size {
		s.failf("the item is cut off")
		return 0
	}
	for _, b := range s.data[s.pos+1 : s.pos+1+size] {
		n = n<<8 | uint64(b)
	}
	if n < [...]uint64{24, 1 << 8, 1 << 16, 1 << 32}[power] {
		s.failf("an integer or a length is not in its shortest form")
		return 0
	}
	s.pos += 1 + size
	return n
}

// take returns the next n bytes, without a copy.
func (s *scanner) take(n uint64) []byte {
	if s.err != nil {
		return nil
	}
	if n > uint64(s.rest()) {
		s.failf("the item is cut off")
		return nil
	}
	end := s.pos + int(n)
	b := s.data[s.pos:end:end]
	s.pos = end
	return b
}

// uint reads an unsigned integer.
func (s *scanner) uint() uint64 {
	start := s.pos
	major, n := s.head()
	if s.err == nil && major != majorUint {
		s.pos = start
		s.failf("an unsigned integer belongs here")
	}
	s.checkUint(start, n)
	if s.err != nil {
		return 0
	}
	return n
}

func (s *scanner) checkUint(start int, n uint64) {
	if s.err == nil && n > MaxInteger {
		s.pos = start
		s.failf("the integer is above 2^53-1")
	}
}

// text reads the n bytes of a text string.
func (s *scanner) text(start int, n uint64, limit int) []byte {
	if s.err == nil && n > uint64(limit) {
		s.pos = start
		s.failf("the text is %d bytes long, the limit is %d", n, limit)
	}
	b := s.take(n)
	if s.err == nil && !utf8.Valid(b) {
		s.pos = start
		s.failf("the text is not UTF-8")
	}
	return b
}

// value walks one item of a message, at the given nesting.
func (s *scanner) value(depth int) {
	start := s.pos
	major, n := s.head()
	if s.err != nil {
		return
	}
	switch major {
	case majorUint:
		s.checkUint(start, n)
	case majorNegInt:
		s.pos = start
		s.failf("there are no negative integers")
	case majorBytes:
		if n > MaxFragment {
			s.pos = start
			s.failf("the byte string is %d bytes long, the limit is %d", n, MaxFragment)
		}
		s.take(n)
	case majorText:
		s.text(start, n, MaxText)
	case majorArray:
		if s.enter(start, depth, n, maxElements, 1) {
			for ; n > 0 && s.err == nil; n-- {
				s.value(depth + 1)
			}
		}
	case majorMap:
		s.pairs(start, depth, n, nil)
	case majorTag:
		s.pos = start
		s.failf("tags are forbidden")
	}
}

// enter checks an array or a map before its elements are read: each takes at
// least size bytes.
func (s *scanner) enter(start, depth int, n, limit, size uint64) bool {
	switch {
	case s.err != nil:
		return false
	case depth >= maxNesting:
		s.pos = start
		s.failf("arrays and maps nest deeper than %d", maxNesting)
	case n > limit:
		s.pos = start
		s.failf("%d elements, the limit is %d", n, limit)
	case n*size > uint64(s.rest()):
		s.failf("the item is cut off")
	}
	return s.err == nil
}

// pairs walks the pairs of a map: text keys, each above the one before in the
// bytewise order of their encoding, which leaves no duplicates. visit, when it
// is not nil, is called before each value.
func (s *scanner) pairs(start, depth int, n uint64, visit func(key, value []byte)) {
	if !s.enter(start, depth, n, maxPairs, 2) {
		return
	}
	var last []byte
	for ; n > 0; n-- {
		at := s.pos
		major, size := s.head()
		if s.err == nil && major != majorText {
			s.pos = at
			s.failf("map keys are text")
		}
		key := s.text(at, size, maxKey)
		if s.err != nil {
			return
		}
		encoded := s.data[at:s.pos]
		if order := bytes.Compare(last, encoded); order >= 0 {
			s.pos = at
			if order == 0 {
				s.failf("the key %q comes twice", key)
			} else {
				s.failf("the key %q is out of order", key)
			}
			return
		}
		last = encoded
		from := s.pos
		s.value(depth + 1)
		if s.err != nil {
			return
		}
		if visit != nil {
			visit(key, s.data[from:s.pos])
		}
	}
}

// header is what every message has in common.
type header struct {
	kind    string
	hasKind bool
	id      uint64
}

// scanMessage checks that payload is one map in core deterministic encoding
// within the structural limits, with a type. The header holds what could be
// read, also when the rest of the payload is refused. visit may be nil.
func scanMessage(payload []byte, visit func(key, value []byte)) (header, *Error) {
	var h header
	err := scanMap(payload, func(key, value []byte) {
		h.note(key, value)
		if visit != nil {
			visit(key, value)
		}
	})
	if err == nil && !h.hasKind {
		err = invalid("there is no text under the key \"type\"", nil)
	}
	return h, err
}

// scanMap checks that data is one map and nothing else.
func scanMap(data []byte, visit func(key, value []byte)) *Error {
	s := scanner{data: data}
	major, n := s.head()
	if s.err == nil && major != majorMap {
		s.pos = 0
		s.failf("a map belongs here")
	}
	if s.err != nil {
		return s.err
	}
	s.pairs(0, 0, n, visit)
	if s.err == nil && s.rest() > 0 {
		s.failf("%d bytes follow the item", s.rest())
	}
	return s.err
}

// note takes type and id from a pair that has been found well-formed.
func (h *header) note(key, value []byte) {
	s := scanner{data: value}
	switch string(key) {
	case "id":
		if value[0]&majorMask == majorUint {
			h.id = s.uint()
		}
	case "type":
		if value[0]&majorMask == majorText {
			_, n := s.head()
			h.kind, h.hasKind = string(s.take(n)), true
		}
	}
}
