package wire

import "math"

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
	// Data holds the bytes as the agent wrote them, its line feed included.
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
func (Records) Kind() string { return "records" }

// CBOR major types, shifted (RFC 8949, section 3.1).
const (
	majorUint  = 0 << 5
	majorBytes = 2 << 5
	majorArray = 4 << 5
)

const recordFields = 5

// AppendRecords appends the encoded message to dst.
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

// DecodeRecords decodes the hot message. The data of the records aliases
// payload. It is as strict as Decode.
func DecodeRecords(payload []byte) (Records, error) {
	var m Records
	d := recordDecoder{rest: payload}
	if d.head(majorArray) != 2 {
		d.fail = true
	}
	kind := d.head(majorUint)
	m.Pending = kind == 1
	n := d.head(majorArray)
	if d.fail || kind > 1 || n == 0 || n > uint64(len(d.rest)) {
		return Records{}, invalid(nil)
	}
	m.Records = make([]Record, 0, min(n, 1024))
	for i := uint64(0); i < n && !d.fail; i++ {
		m.Records = append(m.Records, d.record())
	}
	if d.fail || len(d.rest) != 0 {
		return Records{}, invalid(nil)
	}
	return m, nil
}

type recordDecoder struct {
	rest []byte
	fail bool
}

func (d *recordDecoder) record() Record {
	if d.head(majorArray) != recordFields {
		d.fail = true
	}
	r := Record{Sequence: d.head(majorUint)}
	stream, flags := d.head(majorUint), d.head(majorUint)
	r.Offset = d.head(majorUint)
	n := d.head(majorBytes)
	if stream < uint64(StreamStdout) || stream > uint64(StreamExit) || flags > uint64(FlagMore|FlagContinued) || n > uint64(len(d.rest)) || r.Sequence == 0 {
		d.fail = true
	}
	if d.fail {
		return Record{}
	}
	r.Stream, r.Flags = Stream(stream), Flags(flags)
	r.Data, d.rest = d.rest[:n:n], d.rest[n:]
	return r
}

// head reads one item head of the given major type and returns its argument,
// refusing any but the shortest form.
func (d *recordDecoder) head(major byte) uint64 {
	if d.fail || len(d.rest) == 0 || d.rest[0]&0xe0 != major {
		d.fail = true
		return 0
	}
	info := d.rest[0] & 0x1f
	d.rest = d.rest[1:]
	if info < 24 {
		return uint64(info)
	}
	size := 1 << (info - 24)
	if info > 27 || len(d.rest) < size {
		d.fail = true
		return 0
	}
	var n uint64
	for _, b := range d.rest[:size] {
		n = n<<8 | uint64(b)
	}
	d.rest = d.rest[size:]
	if n < [...]uint64{24, 1 << 8, 1 << 16, 1 << 32}[info-24] {
		d.fail = true
		return 0
	}
	return n
}

// EncodeExit returns the data of an exit record.
func EncodeExit(e Exit) ([]byte, error) { return encMode.Marshal(e) }

// DecodeExit reads the data of an exit record.
func DecodeExit(data []byte) (Exit, error) {
	var e Exit
	if err := decMode.Unmarshal(data, &e); err != nil {
		return Exit{}, invalid(err)
	}
	return e, nil
}
