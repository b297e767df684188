package trail

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/trusted"
)

// Line is one line of the trail.
type Line struct {
	// Text is the line without its newline; at most audit.MaxLine bytes of one
	// that is longer.
	Text []byte
	// Entry is what it says, unless Err says why it is broken.
	Entry audit.Entry
	Err   error
}

// ErrLost says that the file that was read is gone, and perhaps others after it
// that were not read.
var ErrLost = errors.New("entries may be missing here: files were removed while they were read")

// Reader reads the file and its predecessors, the oldest first. It is not safe
// for concurrent use.
type Reader struct {
	dir  *os.File
	name string
	// current is nil until there is a file.
	current *os.File
	// next is the successor of current, which is then written no more.
	next    *os.File
	pending []byte
	// skipping is within a line that was too long, and has been told.
	skipping bool
	chunk    [32 << 10]byte
}

// Open opens the trail whose youngest file has this path. The folder must be
// one that root alone can change. The caller closes the Reader. Error:
// CodeInvalidConfig.
func Open(path string) (*Reader, error) {
	dir, err := trusted.OpenDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	return &Reader{dir: dir, name: filepath.Base(path)}, nil
}

// Close closes the files.
func (r *Reader) Close() error {
	errs := []error{r.dir.Close()}
	for _, f := range []*os.File{r.current, r.next} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// Next returns the next line. The error is io.EOF when there is none yet: a
// later call goes on, also in files that are begun after this one.
func (r *Reader) Next() (Line, error) {
	if r.current == nil {
		oldest, err := r.oldest()
		if oldest == nil || err != nil {
			return Line{}, cmp.Or(err, io.EOF)
		}
		r.current = oldest
	}
	for {
		if l, ok := r.buffered(); ok {
			return l, nil
		}
		n, err := r.current.Read(r.chunk[:])
		r.pending = append(r.pending, r.chunk[:n]...)
		if n > 0 {
			continue
		}
		if err != io.EOF {
			return Line{}, fmt.Errorf("read the audit: %w", err)
		}
		if r.next != nil {
			// Nothing was written between the last look and this one.
			if l, ok := r.advance(); ok {
				return l, nil
			}
			continue
		}
		next, lost, err := r.successor()
		switch {
		case err != nil:
			return Line{}, err
		case next == nil:
			return Line{}, io.EOF
		}
		r.next = next
		if lost {
			return Line{Err: ErrLost}, nil
		}
	}
}

// Rest returns the beginning of a line that has no end yet, and forgets it.
func (r *Reader) Rest() (Line, bool) {
	if len(r.pending) == 0 || r.skipping {
		return Line{}, false
	}
	l := Line{Text: r.pending, Err: errors.New("it has no end")}
	r.pending = nil
	return l, true
}

// advance goes on to the next file. A line that has no end is returned.
func (r *Reader) advance() (Line, bool) {
	l, broken := r.Rest()
	r.current.Close()
	r.current, r.next, r.pending, r.skipping = r.next, nil, nil, false
	return l, broken
}

// buffered takes a line off what was read.
func (r *Reader) buffered() (Line, bool) {
	for {
		end := bytes.IndexByte(r.pending, '\n')
		switch {
		case r.skipping && end < 0:
			r.pending = r.pending[:0]
			return Line{}, false
		case r.skipping:
			r.pending, r.skipping = r.pending[end+1:], false
			continue
		case end < 0 && len(r.pending) < audit.MaxLine:
			return Line{}, false
		case end < 0 || end >= audit.MaxLine:
			l := Line{Text: bytes.Clone(r.pending[:audit.MaxLine]), Err: errors.New("it is too long")}
			r.pending, r.skipping = r.pending[audit.MaxLine:], true
			return l, true
		}
		l := Line{Text: bytes.Clone(r.pending[:end])}
		r.pending = r.pending[end+1:]
		l.Entry, l.Err = Parse(l.Text)
		return l, true
	}
}

// maxFiles is how many predecessors are looked for; the configuration allows
// fewer.
const maxFiles = 100

// nth opens a file by its number, 0 being the youngest; nil if there is none.
func (r *Reader) nth(n int) (*os.File, error) {
	name := r.name
	if n > 0 {
		name = fmt.Sprintf("%s.%d", name, n)
	}
	f, err := trusted.OpenFile(r.dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return f, err
}

// holds reports whether the file has this number.
func (r *Reader) holds(n int, f *os.File) bool {
	got, err := r.nth(n)
	if got == nil || err != nil {
		return got == nil && err == nil && f == nil
	}
	defer got.Close()
	if f == nil {
		return false
	}
	a, errA := got.Stat()
	b, errB := f.Stat()
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// oldest opens the file with the highest number; nil if there is none.
func (r *Reader) oldest() (*os.File, error) {
	for n := maxFiles; n >= 0; n-- {
		f, err := r.nth(n)
		if err != nil {
			return nil, err
		}
		if f == nil {
			continue
		}
		if r.holds(n+1, nil) {
			return f, nil
		}
		// It was renamed while we looked.
		f.Close()
		n = maxFiles + 1
	}
	return nil, nil
}

// successor opens the file that was begun after the current one, or nil if
// there is none yet. Files are renamed to higher numbers, the oldest first, so
// looking upwards does not miss one; and as long as the current one has kept
// its number, so has the one after it.
func (r *Reader) successor() (next *os.File, lost bool, err error) {
	for {
		at := 0
		for at <= maxFiles && !r.holds(at, r.current) {
			at++
		}
		if at == 0 {
			return nil, false, nil
		}
		if at > maxFiles {
			next, err = r.oldest()
			return next, true, err
		}
		n := at - 1
		for next == nil && n >= 0 {
			if next, err = r.nth(n); err != nil {
				return nil, false, err
			}
			n--
		}
		settled := r.holds(at, r.current)
		for i := at - 1; i > n+1; i-- {
			settled = settled && r.holds(i, nil)
		}
		if settled {
			return next, false, nil
		}
		if next != nil {
			next.Close()
			next = nil
		}
	}
}
