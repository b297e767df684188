package custody

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// File owns one open file description of a regular file. ReadAt, WriteAt,
// Punch and Reserve leave the file offset alone and may be called from several
// goroutines. A description that is spliced is used for nothing else: only
// Pipe moves its offset.
type File struct {
	fd   int
	name string
}

// NewFile takes ownership of a raw descriptor. The name is for errors.
func NewFile(fd int, name string) *File { return &File{fd: fd, name: name} }

// ReadAt fills b from the given place. At the end of the file it returns what
// there is, with io.EOF.
func (f *File) ReadAt(b []byte, off int64) (int, error) {
	done := 0
	for done < len(b) {
		n, err := unix.Pread(f.fd, b[done:], off+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, f.wrap("read", err)
		}
		if n == 0 {
			return done, io.EOF
		}
		done += n
	}
	return done, nil
}

// WriteAt writes all of b at the given place. After an error some of it may
// have been written.
func (f *File) WriteAt(b []byte, off int64) (int, error) {
	done := 0
	for done < len(b) {
		n, err := unix.Pwrite(f.fd, b[done:], off+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, f.wrap("write", err)
		}
		if n == 0 {
			return done, f.wrap("write", io.ErrShortWrite)
		}
		done += n
	}
	return done, nil
}

// Offset returns the description's file offset: how far a spliced file got.
func (f *File) Offset() (int64, error) {
	off, err := unix.Seek(f.fd, 0, io.SeekCurrent)
	return off, f.wrap("seek", err)
}

// Size returns the file's size in bytes.
func (f *File) Size() (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return 0, f.wrap("stat", err)
	}
	return st.Size, nil
}

// Truncate sets the file's size. A file of that size is left alone: truncating
// it would give back what was allocated ahead, which others take when the disk
// is full.
func (f *File) Truncate(size int64) error {
	if now, err := f.Size(); err != nil || now == size {
		return err
	}
	return f.wrap("truncate", retry(func() error { return unix.Ftruncate(f.fd, size) }))
}

// Reserve allocates disk space without changing the file's size
// (fallocate(2), FALLOC_FL_KEEP_SIZE).
func (f *File) Reserve(off, n int64) error {
	return f.wrap("reserve", retry(func() error { return unix.Fallocate(f.fd, unix.FALLOC_FL_KEEP_SIZE, off, n) }))
}

// Punch frees the bytes of a range; reading them gives zeros from then on.
// Callers keep to whole pages: a partial page is zeroed in place, which a pipe
// that still holds the page would deliver.
func (f *File) Punch(off, n int64) error {
	if n <= 0 {
		return nil
	}
	return f.wrap("punch", retry(func() error {
		return unix.Fallocate(f.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	}))
}

// Close closes the description.
func (f *File) Close() error { return unix.Close(f.fd) }

func (f *File) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", op, f.name, err)
}

func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
