package custody

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// PipeSize is what the bridge asks for as the capacity of a pipe, in bytes: the
// most that an unprivileged process gets by default (pipe(7)).
const PipeSize = 1 << 20

const spliceFlags = unix.SPLICE_F_NONBLOCK | unix.SPLICE_F_MOVE

// Pipe owns one end of a pipe. One goroutine at a time may splice; Close may be
// called from any other and makes it return os.ErrClosed.
type Pipe struct {
	f      *os.File
	raw    syscall.RawConn
	name   string
	closed atomic.Bool
}

// NewPipe takes ownership of a raw descriptor, also when it fails. The
// descriptor must be non-blocking already: the runtime's poller waits for it,
// and setting the mode here would hide that its maker had another idea of who
// shares the description.
func NewPipe(fd int, name string) (*Pipe, error) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err == nil && flags&unix.O_NONBLOCK == 0 {
		err = errors.New("the description is blocking")
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("adopt pipe %s: %w", name, err)
	}
	// A larger pipe saves wake-ups; without the permission the default works.
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, PipeSize)
	f := os.NewFile(uintptr(fd), name)
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("adopt pipe %s: %w", name, err)
	}
	return &Pipe{f: f, raw: raw, name: name}, nil
}

// SpliceTo moves at most max bytes from the pipe to dst, at dst's own offset,
// waiting until there are some. The kernel moves bytes and offset in one call,
// so a byte is in the pipe or in the file, whenever this process dies.
//
// It returns io.EOF when all writers are gone and the pipe is empty, and
// os.ErrClosed after Close. Any other error (ENOSPC, EIO) has moved nothing.
func (p *Pipe) SpliceTo(dst *File, max int) (int, error) {
	var n int64
	var spliceErr error
	err := p.raw.Read(func(fd uintptr) bool {
		n, spliceErr = splice(int(fd), dst.fd, max)
		return spliceErr != unix.EAGAIN
	})
	if err != nil {
		return 0, p.failed(err)
	}
	if spliceErr != nil {
		return 0, fmt.Errorf("splice %s to %s: %w", p.name, dst.name, spliceErr)
	}
	if n == 0 {
		return 0, io.EOF
	}
	return int(n), nil
}

// SpliceFrom moves at most max bytes from src, at src's own offset, into the
// pipe, waiting until there is room. The caller makes sure that src holds max
// bytes. Errors: unix.EPIPE when no reader is left, os.ErrClosed after Close.
func (p *Pipe) SpliceFrom(src *File, max int) (int, error) {
	var n int64
	var spliceErr error
	err := p.raw.Write(func(fd uintptr) bool {
		n, spliceErr = splice(src.fd, int(fd), max)
		return spliceErr != unix.EAGAIN
	})
	if err != nil {
		return 0, p.failed(err)
	}
	if spliceErr != nil {
		return 0, fmt.Errorf("splice %s to %s: %w", src.name, p.name, spliceErr)
	}
	if n == 0 {
		return 0, fmt.Errorf("splice %s to %s: %w", src.name, p.name, io.ErrUnexpectedEOF)
	}
	return int(n), nil
}

// Buffered returns how many bytes the pipe holds (FIONREAD, which x/sys calls TIOCINQ).
func (p *Pipe) Buffered() (int64, error) {
	var n int
	var ioctlErr error
	if err := p.raw.Control(func(fd uintptr) {
		n, ioctlErr = unix.IoctlGetInt(int(fd), unix.TIOCINQ)
	}); err != nil {
		return 0, p.failed(err)
	}
	if ioctlErr != nil {
		return 0, fmt.Errorf("FIONREAD of %s: %w", p.name, ioctlErr)
	}
	return int64(n), nil
}

// Close closes the end and releases a goroutine that waits in a splice.
func (p *Pipe) Close() error {
	p.closed.Store(true)
	return p.f.Close()
}

// failed wraps an error of the RawConn, which tells of a Close during a wait
// with an error that has no name outside of the standard library.
func (p *Pipe) failed(err error) error {
	if p.closed.Load() {
		err = os.ErrClosed
	}
	return fmt.Errorf("pipe %s: %w", p.name, err)
}

func splice(from, to, max int) (int64, error) {
	for {
		n, err := unix.Splice(from, nil, to, nil, max, spliceFlags)
		if err != unix.EINTR {
			return int64(n), err
		}
	}
}
