package journal

import (
	"encoding/binary"
	"errors"
	"hash/crc32"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/index"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

const (
	// EntrySize is the size of an entry in bytes. It divides every page size,
	// so an entry never spans two pages.
	EntrySize = 256
	// headerSize is where the entries begin.
	headerSize = 4096
	// MaxAnswers is how many requests one input can answer.
	MaxAnswers = 5

	checksumAt = EntrySize - 4
	payloadAt  = 16
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Kind says what an entry records.
type Kind uint8

// Kinds of entries. The numbers are part of the file format.
const (
	KindInput      Kind = 1
	KindCloseInput Kind = 2
	KindGeneration Kind = 3
	KindRequest    Kind = 4
	KindExit       Kind = 5
)

// Entry is one of Input, CloseInput, Generation, Request and Exit.
type Entry interface {
	kind() Kind
	// put writes the fields into a cleared entry.
	put(b []byte)
}

// Input is an accepted input.
type Input struct {
	ID         string
	Hash       [32]byte // SHA-256 of the bytes
	Start      uint64   // where they are in input.data
	Length     uint64
	Generation uint64
	// Answers are the sequences of the requests that it answers.
	Answers []uint64
}

// CloseInput says that no input follows.
type CloseInput struct {
	End        uint64 // bytes accepted in all
	Generation uint64
}

// Generation is a new writer.
type Generation struct {
	Number uint64
	Client string
}

// Request is a record that waits for an answer. It is written before the
// record gets its index entry, and is void if that entry was never written.
type Request struct {
	Sequence uint64
	End      uint64 // where the record ends in standard output
	Length   uint64
	Hash     [32]byte // SHA-256 of the request's id
}

// Exit is the end of the session's process.
type Exit struct {
	// Data is the data of the exit record.
	Data []byte
}

func (Input) kind() Kind      { return KindInput }
func (CloseInput) kind() Kind { return KindCloseInput }
func (Generation) kind() Kind { return KindGeneration }
func (Request) kind() Kind    { return KindRequest }
func (Exit) kind() Kind       { return KindExit }

// Layout of an entry; CUSTODY.md has it as a table.
//
//	  0  8  number of the entry, from 1
//	  8  1  kind
//	  9  1  length of the text at 80
//	 10  1  number of answers at 208
//	 11  5  zero
//	 16 32  four integers, by kind
//	 48 32  hash
//	 80 128 text
//	208 40  five integers: answers
//	248  4  zero
//	252  4  CRC-32C of bytes 0 to 251
const (
	integersAt = payloadAt
	hashAt     = 48
	textAt     = 80
	maxText    = 128
	answersAt  = textAt + maxText
)

var le = binary.LittleEndian

func (e Input) put(b []byte) {
	putIntegers(b, e.Start, e.Length, e.Generation)
	copy(b[hashAt:], e.Hash[:])
	putText(b, e.ID)
	b[10] = byte(len(e.Answers))
	for i, a := range e.Answers {
		le.PutUint64(b[answersAt+8*i:], a)
	}
}

func (e CloseInput) put(b []byte) { putIntegers(b, e.End, e.Generation) }

func (e Generation) put(b []byte) {
	putIntegers(b, e.Number)
	putText(b, e.Client)
}

func (e Request) put(b []byte) {
	putIntegers(b, e.Sequence, e.End, e.Length)
	copy(b[hashAt:], e.Hash[:])
}

func (e Exit) put(b []byte) { putText(b, string(e.Data)) }

func putIntegers(b []byte, values ...uint64) {
	for i, v := range values {
		le.PutUint64(b[integersAt+8*i:], v)
	}
}

func putText(b []byte, s string) {
	b[9] = byte(len(s))
	copy(b[textAt:], s)
}

var errTooLong = errors.New("a field does not fit into an entry of the control log")

func fits(e Entry) bool {
	switch e := e.(type) {
	case Input:
		return len(e.ID) <= maxText && len(e.Answers) <= MaxAnswers
	case Generation:
		return len(e.Client) <= maxText
	case Exit:
		return len(e.Data) <= maxText
	default:
		return true
	}
}

// encode writes the entry with this number into b.
func encode(b []byte, number uint64, e Entry) error {
	if !fits(e) {
		return errTooLong
	}
	clear(b[:EntrySize])
	le.PutUint64(b, number)
	b[8] = byte(e.kind())
	e.put(b)
	le.PutUint32(b[checksumAt:], crc32.Checksum(b[:checksumAt], castagnoli))
	return nil
}

// decode reads the entry with this number. It reports false for one that is
// torn, absent or not in the form that encode gives.
func decode(b []byte, number uint64) (Entry, bool) {
	b = b[:EntrySize]
	if le.Uint64(b) != number || le.Uint32(b[checksumAt:]) != crc32.Checksum(b[:checksumAt], castagnoli) {
		return nil, false
	}
	n, answers := int(b[9]), int(b[10])
	if n > maxText || answers > MaxAnswers {
		return nil, false
	}
	integer := func(i int) uint64 { return le.Uint64(b[integersAt+8*i:]) }
	text := string(b[textAt : textAt+n])
	var e Entry
	switch Kind(b[8]) {
	case KindInput:
		in := Input{ID: text, Hash: [32]byte(b[hashAt:textAt]), Start: integer(0), Length: integer(1), Generation: integer(2)}
		for i := range answers {
			in.Answers = append(in.Answers, le.Uint64(b[answersAt+8*i:]))
		}
		e = in
	case KindCloseInput:
		e = CloseInput{End: integer(0), Generation: integer(1)}
	case KindGeneration:
		e = Generation{Number: integer(0), Client: text}
	case KindRequest:
		e = Request{Sequence: integer(0), End: integer(1), Length: integer(2), Hash: [32]byte(b[hashAt:textAt])}
	case KindExit:
		e = Exit{Data: []byte(text)}
	default:
		return nil, false
	}
	return e, isExact(b, number, e)
}

// isExact reports whether b is what encode makes of e.
func isExact(b []byte, number uint64, e Entry) bool {
	var again [EntrySize]byte
	return encode(again[:], number, e) == nil && string(again[:]) == string(b)
}

// Floor says what may be freed: everything up to the sequence, which ends at
// these places of the streams, because a writer has acknowledged it or because
// it was dropped.
type Floor struct {
	index.Floor
	// Acked is the sequence up to which a writer has acknowledged. It is
	// below Sequence when what follows was dropped.
	Acked uint64
	// DroppedRecords and DroppedBytes went unacknowledged, since the session
	// began.
	DroppedRecords, DroppedBytes uint64
}

// The floor is kept in two slots of the header page, written in turn, so that
// acks do not make the log grow. A slot is
//
//	 0  8  count, from 1; the slot with the higher one is in force
//	 8  8  sequence
//	16  8  end in standard output
//	24  8  end in standard error
//	32  8  acknowledged sequence
//	40  8  dropped records
//	48  8  dropped bytes
//	56  4  CRC-32C of bytes 0 to 55
//
// The slots are 512 bytes apart and never share a sector.
const (
	floorAt   = 1024
	floorStep = 512
	floorSize = 60
	floorSum  = floorSize - 4
)

func encodeFloor(b []byte, count uint64, f Floor) {
	le.PutUint64(b, count)
	le.PutUint64(b[8:], f.Sequence)
	le.PutUint64(b[16:], f.Ends.Stdout)
	le.PutUint64(b[24:], f.Ends.Stderr)
	le.PutUint64(b[32:], f.Acked)
	le.PutUint64(b[40:], f.DroppedRecords)
	le.PutUint64(b[48:], f.DroppedBytes)
	le.PutUint32(b[floorSum:], crc32.Checksum(b[:floorSum], castagnoli))
}

func decodeFloor(b []byte) (count uint64, f Floor, ok bool) {
	if le.Uint32(b[floorSum:]) != crc32.Checksum(b[:floorSum], castagnoli) {
		return 0, Floor{}, false
	}
	f.Sequence, f.Ends = le.Uint64(b[8:]), index.Ends{Stdout: le.Uint64(b[16:]), Stderr: le.Uint64(b[24:])}
	f.Acked, f.DroppedRecords, f.DroppedBytes = le.Uint64(b[32:]), le.Uint64(b[40:]), le.Uint64(b[48:])
	return le.Uint64(b), f, true
}

const (
	magic   = "PSBCTRL\x00"
	version = 2
)

// header is magic, version, entry size, epoch; its checksum is at 60.
func header(epoch wire.Epoch) []byte {
	b := make([]byte, 64)
	copy(b, magic)
	le.PutUint32(b[8:], version)
	le.PutUint32(b[12:], EntrySize)
	copy(b[16:32], epoch)
	le.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
	return b
}
