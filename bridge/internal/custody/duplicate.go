package custody

import (
	"fmt"
	"syscall"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// Duplicates are descriptors of a Set's descriptions: they share everything,
// offsets included.
type Duplicates struct {
	Names []wire.DescriptorName
	// FDs are close-on-exec and belong to whoever has the Duplicates.
	FDs []int
}

// Close closes all of them.
func (d Duplicates) Close() {
	for _, fd := range d.FDs {
		unix.Close(fd)
	}
}

// Duplicate duplicates each descriptor that is still open; a pipe may be closed
// meanwhile and is left out then. The set's files must stay open.
func (s *Set) Duplicate() (Duplicates, error) {
	var d Duplicates
	for name, from := range s.all() {
		fd, err := -1, error(nil)
		switch from := from.(type) {
		case *File:
			fd, err = unix.FcntlInt(uintptr(from.fd), unix.F_DUPFD_CLOEXEC, 0)
		case syscall.Conn:
			fd, err = duplicate(from)
		}
		if err != nil {
			d.Close()
			return Duplicates{}, fmt.Errorf("duplicate %s: %w", name, err)
		}
		if fd >= 0 {
			d.Names, d.FDs = append(d.Names, name), append(d.FDs, fd)
		}
	}
	return d, nil
}

// all yields what is open as *File or syscall.Conn.
func (s *Set) all() map[wire.DescriptorName]any {
	all := map[wire.DescriptorName]any{
		wire.FDListener:    s.Listener,
		wire.FDStdoutSpool: s.StdoutSpool, wire.FDStdoutRead: s.StdoutRead,
		wire.FDStderrSpool: s.StderrSpool, wire.FDStderrRead: s.StderrRead,
		wire.FDInputData: s.InputData, wire.FDInputSplice: s.InputSplice,
		wire.FDIndex: s.Index, wire.FDControlLog: s.ControlLog,
		wire.FDExitSpool: s.ExitSpool, wire.FDExitRead: s.ExitRead,
	}
	for name, p := range map[wire.DescriptorName]*Pipe{
		wire.FDStdin: s.Stdin, wire.FDStdout: s.Stdout, wire.FDStderr: s.Stderr, wire.FDExit: s.Exit,
	} {
		if p != nil {
			all[name] = p.f
		}
	}
	if s.Custody != nil {
		all[wire.FDCustody] = s.Custody
	}
	return all
}

// duplicate returns -1 for what is closed.
func duplicate(c syscall.Conn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, nil
	}
	fd, failed := -1, error(nil)
	if err := raw.Control(func(from uintptr) { fd, failed = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return -1, nil
	}
	return fd, failed
}
