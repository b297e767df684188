package journal

import (
	"fmt"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
)

const (
	// dataReserve is how much disk is kept allocated behind the committed
	// end, so that an abort or an answer still fits on a full disk.
	dataReserve = 256 << 10
	dataLow     = 128 << 10
)

// Data is input.data. One goroutine at a time may write; the description that
// is spliced to the agent is another and not its business.
type Data struct {
	file     *custody.File
	end      int64 // committed
	reserved int64
	freed    int64
}

// OpenData recovers the file: it drops what was written for an input that was
// never committed. Nothing below the committed end is touched.
func OpenData(file *custody.File, end uint64) (*Data, error) {
	size, err := file.Size()
	if err != nil {
		return nil, err
	}
	if size < int64(end) {
		return nil, fmt.Errorf("%w: input.data holds %d bytes of %d", ErrCorrupt, size, end)
	}
	if err := file.Truncate(int64(end)); err != nil {
		return nil, err
	}
	d := &Data{file: file, end: int64(end), reserved: int64(end)}
	d.reserve()
	return d, nil
}

// End returns the committed end.
func (d *Data) End() int64 { return d.end }

// Write puts the bytes at the committed end, which does not move before
// Commit. A failed write leaves nothing that is ever read.
func (d *Data) Write(payload []byte) error {
	d.reserve()
	_, err := d.file.WriteAt(payload, d.end)
	return err
}

// Commit moves the committed end over n written bytes, once their entry is in
// the log.
func (d *Data) Commit(n int) { d.end += int64(n) }

func (d *Data) reserve() {
	if d.reserved-d.end >= dataLow {
		return
	}
	// Without the reserve a full disk is told when a write fails.
	if d.file.Reserve(d.end, dataReserve) == nil {
		d.reserved = d.end + dataReserve
	}
}

// Free gives back whole pages below the given place. The caller knows that no
// pipe holds them any more: a page that is punched in part is zeroed in place.
func (d *Data) Free(below, pageSize int64) error {
	below = below / pageSize * pageSize
	if below <= d.freed {
		return nil
	}
	if err := d.file.Punch(d.freed, below-d.freed); err != nil {
		return err
	}
	d.freed = below
	return nil
}
