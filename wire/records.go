package wire

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
)

// Stream says where a record comes from.
type Stream uint8

// Streams.
const (
	StreamStdout Stream = 1
	StreamStderr Stream = 2
	// StreamExit is the last record of a session; its data is an Exit,
	// encoded as a CBOR map.
	StreamExit Stream = 3
)

// Flags of a record or of its fragment.
type Flags uint8

const (
	// FlagMore: further fragments of this record follow.
	FlagMore Flags = 1 << 0
	// FlagContinued: the record was too long and goes on in the next sequence
	// of the same stream.
	FlagContinued Flags = 1 << 1
)

// Record is one record of output, or a fragment of one.
type Record struct {
	Sequence uint64
	Stream   Stream
	Flags    Flags
	// Offset is where Data stands in the record, in bytes; 0 unless the
	// record travels as fragments.
	Offset uint64
	// Data holds the bytes as the agent wrote them, its line feed included:
	// 1 to MaxFragment of them.
	Data []byte
}

// Records is the hot message, an array: [0, [record...]], or [1, [record...]]
// for pending requests, which are shown again after an attach and don't move
// the cursor. A record is [sequence, stream, flags, offset, data].
type Records struct {
	Pending bool
	Records []Record
}

// Kind implements Message. It never travels.
func (Records) Kind() string { return recordsKind }

// Validate implements Message.
func (m Records) Validate() error {
	if len(m.Records) == 0 {
		return invalid("there is no record", nil)
	}
	for i := range m.Records {
		if what := m.Records[i].refusal(m.Pending); what != "" {
			return invalid(fmt.Sprintf("record %d: %s", i, what), nil)
		}
	}
	return nil
}

// refusal says why the record may not travel; "" means that it may.
func (r *Record) refusal(pending bool) string {
	switch {
	case r.Sequence == 0 || r.Sequence > MaxInteger:
		return "a record's sequence goes from 1 to 2^53-1"
	case r.Stream < StreamStdout || r.Stream > StreamExit:
		return "there is no such stream"
	case r.Flags > FlagMore|FlagContinued:
		return "there is no such flag"
	case len(r.Data) == 0 || len(r.Data) > MaxFragment:
		return "a record carries 1 to 262144 bytes"
	case r.Offset > MaxInteger-MaxFragment:
		return "a record's offset is too large"
	case pending && r.Stream != StreamStdout:
		return "pending requests come from standard output"
	case r.Stream == StreamExit && (r.Flags != 0 || r.Offset != 0 || len(r.Data) > MaxExitRecord):
		return "an exit record is whole and at most 256 bytes long"
	}
	return ""
}

const recordFields = 5

// AppendRecords appends the encoded message to dst. It checks nothing: what
// Validate refuses, the receiver refuses.
func AppendRecords(dst []byte, m Records) []byte {
	dst = appendHead(dst, majorArray, 2)
	kind := uint64(0)
	if m.Pending {
		kind = 1
	}
	dst = appendHead(dst, majorUint, kind)
	dst = appendHead(dst, majorArray, uint64(len(m.Records)))
	for i := range m.Records {
		dst = AppendRecord(dst, &m.Records[i])
	}
	return dst
}

// AppendRecord appends one encoded record to dst.
func AppendRecord(dst []byte, r *Record) []byte {
	dst = appendHead(dst, majorArray, recordFields)
	dst = appendHead(dst, majorUint, r.Sequence)
	dst = appendHead(dst, majorUint, uint64(r.Stream))
	dst = appendHead(dst, majorUint, uint64(r.Flags))
	dst = appendHead(dst, majorUint, r.Offset)
	dst = appendHead(dst, majorBytes, uint64(len(r.Data)))
	return append(dst, r.Data...)
}

// RecordOverhead bounds what AppendRecord adds to the data, in bytes.
const RecordOverhead = 1 + 9 + 2 + 2 + 9 + 5

// RecordsOverhead bounds what AppendRecords adds to its records, in bytes.
const RecordsOverhead = 1 + 1 + 5

func appendHead(dst []byte, major byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(dst, major|byte(n))
	case n <= math.MaxUint8:
		return append(dst, major|24, byte(n))
	case n <= math.MaxUint16:
		return append(dst, major|25, byte(n>>8), byte(n))
	case n <= math.MaxUint32:
		return append(dst, major|26, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	default:
		return append(dst, major|27, byte(n>>56), byte(n>>48), byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
}

// minRecord is the shortest encoded record, in bytes.
const minRecord = 7

// DecodeRecords decodes the hot message. The data of the records aliases
// payload. It is as strict as Decode, and allocates at most eight times the
// size of the payload.
func DecodeRecords(payload []byte) (Records, error) {
	s := scanner{data: payload}
	s.array(2)
	kind := s.uint()
	if s.err == nil && kind > 1 {
		s.failf("there is no kind %d of records", kind)
	}
	major, n := s.head()
	switch {
	case s.err != nil:
	case major != majorArray || n == 0:
		s.failf("an array of records belongs here")
	case n > uint64(s.rest()/minRecord):
		s.failf("the item is cut off")
	}
	if s.err != nil {
		return Records{}, s.err
	}
	m := Records{Pending: kind == 1, Records: make([]Record, n)}
	for i := range m.Records {
		s.record(&m.Records[i], m.Pending)
	}
	if s.err == nil && s.rest() > 0 {
		s.failf("%d bytes follow the message", s.rest())
	}
	if s.err != nil {
		return Records{}, s.err
	}
	return m, nil
}

// array reads the head of an array of exactly n elements.
func (s *scanner) array(n uint64) {
	start := s.pos
	major, got := s.head()
	if s.err == nil && (major != majorArray || got != n) {
		s.pos = start
		s.failf("an array of %d belongs here", n)
	}
}

func (s *scanner) record(r *Record, pending bool) {
	start := s.pos
	s.array(recordFields)
	r.Sequence = s.uint()
	stream, flags := s.uint(), s.uint()
	r.Offset = s.uint()
	major, n := s.head()
	if s.err == nil && major != majorBytes {
		s.failf("a byte string belongs here")
	}
	r.Data = s.take(n)
	// What does not fit into eight bits is refused like any other value that
	// does not exist.
	r.Stream, r.Flags = Stream(min(stream, math.MaxUint8)), Flags(min(flags, math.MaxUint8))
	if s.err != nil {
		return
	}
	if what := r.refusal(pending); what != "" {
		s.pos = start
		s.failf("%s", what)
	}
}

// EncodeExit returns the data of an exit record.
func EncodeExit(e Exit) ([]byte, error) {
	if err := e.Validate(); err != nil {
		return nil, err
	}
	b, err := encMode.Marshal(e)
	if err != nil {
		return nil, &Error{Code: CodeInternal, Message: "the exit can't be encoded", Err: err}
	}
	return b, nil
}

// DecodeExit reads the data of an exit record. It is as strict as Decode.
func DecodeExit(data []byte) (Exit, error) {
	if len(data) > MaxExitRecord {
		return Exit{}, invalid(fmt.Sprintf("an exit is %d bytes long, the limit is %d", len(data), MaxExitRecord), nil)
	}
	if err := scanMap(data, nil); err != nil {
		return Exit{}, err
	}
	var e Exit
	if err := decMode.Unmarshal(data, &e); err != nil {
		return Exit{}, explain(reflect.TypeFor[Exit](), data, err)
	}
	again, err := encMode.Marshal(e)
	if err != nil || !bytes.Equal(again, data) {
		return Exit{}, explain(reflect.TypeFor[Exit](), data, err)
	}
	if err := e.Validate(); err != nil {
		return Exit{}, err
	}
	return e, nil
}
