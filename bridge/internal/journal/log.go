package journal

import (
	"errors"
	"fmt"
	"io"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

const (
	// reserveStep is how much disk is allocated ahead of the entries at a
	// time, and reserveLow when the next step is due, in bytes. What is left
	// below reserveLow on a full disk is for generations, closeInput, small
	// answers and the end.
	reserveStep = 256 << 10
	reserveLow  = 64 << 10

	readBatch = 1024
)

// ErrCorrupt says that a file is not what this bridge or an earlier one wrote.
var ErrCorrupt = errors.New("the control log is damaged or of another session")

// Log is the open control log. One goroutine at a time may use it.
type Log struct {
	file     *custody.File
	next     uint64 // number of the next entry
	reserved int64  // up to where disk is allocated
	count    uint64 // of the floor slot in force
	buf      [EntrySize]byte
}

// Open recovers the log: it hands every committed entry to visit, in order,
// and drops what follows the last one. An empty file is the case without
// entries. It takes no ownership of the file. Errors: ErrCorrupt, those of
// the file, those of visit.
func Open(file *custody.File, epoch wire.Epoch, visit func(Entry) error) (*Log, Floor, error) {
	l := &Log{file: file, next: 1}
	floor, err := l.openHeader(epoch)
	if err != nil {
		return nil, Floor{}, err
	}
	if err := l.scan(visit); err != nil {
		return nil, Floor{}, err
	}
	// A torn entry was never answered, and must not look whole to a later
	// recovery when another is written behind it.
	if err := file.Truncate(place(l.next)); err != nil {
		return nil, Floor{}, err
	}
	l.reserved = place(l.next)
	return l, floor, nil
}

func (l *Log) openHeader(epoch wire.Epoch) (Floor, error) {
	page := make([]byte, headerSize)
	n, err := l.file.ReadAt(page, 0)
	if err != nil && err != io.EOF {
		return Floor{}, err
	}
	want := header(epoch)
	if n == 0 {
		copy(page, want)
		_, err := l.file.WriteAt(page, 0)
		return Floor{}, err
	}
	if n < headerSize || string(page[:len(want)]) != string(want) {
		return Floor{}, fmt.Errorf("%w: its header does not belong to epoch %s", ErrCorrupt, epoch)
	}
	return l.readFloor(page), nil
}

func (l *Log) readFloor(page []byte) Floor {
	var floor Floor
	for slot := range 2 {
		count, f, ok := decodeFloor(page[floorAt+slot*floorStep:])
		if ok && count > l.count {
			l.count, floor = count, f
		}
	}
	return floor
}

func (l *Log) scan(visit func(Entry) error) error {
	buf := make([]byte, readBatch*EntrySize)
	for {
		n, err := l.file.ReadAt(buf, place(l.next))
		if err != nil && err != io.EOF {
			return err
		}
		whole := n / EntrySize
		for i := range whole {
			e, ok := decode(buf[i*EntrySize:], l.next)
			if !ok {
				return nil
			}
			if err := visit(e); err != nil {
				return err
			}
			l.next++
		}
		if whole < readBatch {
			return nil
		}
	}
}

func place(number uint64) int64 { return headerSize + int64(number-1)*EntrySize }

// Append commits an entry. After an error it is not committed and its place is
// used again.
func (l *Log) Append(e Entry) error {
	if err := encode(l.buf[:], l.next, e); err != nil {
		return err
	}
	// An error means less reserve, which Reserved tells; the write itself
	// may still have room.
	_ = l.reserve()
	if _, err := l.file.WriteAt(l.buf[:], place(l.next)); err != nil {
		return err
	}
	l.next++
	return nil
}

// SetFloor replaces the floor.
func (l *Log) SetFloor(f Floor) error {
	var b [floorSize]byte
	encodeFloor(b[:], l.count+1, f)
	slot := int64((l.count + 1) % 2)
	if _, err := l.file.WriteAt(b[:], floorAt+slot*floorStep); err != nil {
		return err
	}
	l.count++
	return nil
}

// Reserve allocates disk ahead of the entries and returns the error of the
// file when less than the reserve is left: then nothing should be begun that
// can wait.
func (l *Log) Reserve() error { return l.reserve() }

func (l *Log) reserve() error {
	at := place(l.next)
	if l.reserved-at >= reserveLow {
		return nil
	}
	if err := l.file.Reserve(l.reserved, at-l.reserved+reserveStep); err != nil {
		return err
	}
	l.reserved = at + reserveStep
	return nil
}
