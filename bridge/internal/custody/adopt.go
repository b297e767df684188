package custody

import (
	"fmt"
	"net"
	"os"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// Set is everything that a session is made of. The bridge owns all of it.
type Set struct {
	// Stdin is nil when input was closed in an earlier life of the bridge.
	Stdin                *Pipe
	Stdout, Stderr, Exit *Pipe
	Listener             *net.UnixListener
	// Custody is where a later broker asks for duplicates. It may be nil.
	Custody *net.UnixListener
	// Files by descriptor name.
	StdoutSpool, StderrSpool, StdoutRead, StderrRead *File
	Index, ControlLog                                *File
	InputSplice, InputData                           *File
	ExitSpool, ExitRead                              *File
}

// want says what a descriptor must be: its file type, and whether it must be
// readable and writable.
type want struct {
	kind        uint32
	read, write bool
	optional    bool
}

var wanted = map[wire.DescriptorName]want{
	wire.FDStdin:       {kind: unix.S_IFIFO, write: true, optional: true},
	wire.FDStdout:      {kind: unix.S_IFIFO, read: true},
	wire.FDStderr:      {kind: unix.S_IFIFO, read: true},
	wire.FDExit:        {kind: unix.S_IFIFO, read: true},
	wire.FDListener:    {kind: unix.S_IFSOCK},
	wire.FDStdoutSpool: {kind: unix.S_IFREG, write: true},
	wire.FDStderrSpool: {kind: unix.S_IFREG, write: true},
	wire.FDStdoutRead:  {kind: unix.S_IFREG, read: true, write: true},
	wire.FDStderrRead:  {kind: unix.S_IFREG, read: true, write: true},
	wire.FDIndex:       {kind: unix.S_IFREG, read: true, write: true},
	wire.FDInputSplice: {kind: unix.S_IFREG, read: true},
	wire.FDInputData:   {kind: unix.S_IFREG, read: true, write: true},
	wire.FDControlLog:  {kind: unix.S_IFREG, read: true, write: true},
	wire.FDExitSpool:   {kind: unix.S_IFREG, write: true},
	wire.FDExitRead:    {kind: unix.S_IFREG, read: true},
	wire.FDCustody:     {kind: unix.S_IFSOCK, optional: true},
}

// samePairs are the names that must point at one file.
var samePairs = [][2]wire.DescriptorName{
	{wire.FDStdoutSpool, wire.FDStdoutRead},
	{wire.FDStderrSpool, wire.FDStderrRead},
	{wire.FDInputSplice, wire.FDInputData},
	{wire.FDExitSpool, wire.FDExitRead},
}

// Adopt takes ownership of the descriptors that came with a Configure, in the
// order of names. When it fails, with CodeInvalidConfig, all are closed.
func Adopt(names []wire.DescriptorName, fds []int) (*Set, error) {
	byName, err := pairUp(names, fds)
	if err == nil {
		err = checkAll(byName)
	}
	if err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, err
	}
	return build(byName)
}

func pairUp(names []wire.DescriptorName, fds []int) (map[wire.DescriptorName]int, error) {
	if len(names) != len(fds) {
		return nil, refuse("%d descriptors are named and %d came", len(names), len(fds))
	}
	byName := make(map[wire.DescriptorName]int, len(names))
	for i, name := range names {
		if _, known := wanted[name]; !known {
			return nil, refuse("there is no descriptor of the name %.64q", name)
		}
		if _, twice := byName[name]; twice {
			return nil, refuse("the descriptor %s came twice", name)
		}
		byName[name] = fds[i]
	}
	for name, w := range wanted {
		if _, ok := byName[name]; !ok && !w.optional {
			return nil, refuse("the descriptor %s is missing", name)
		}
	}
	return byName, nil
}

func checkAll(byName map[wire.DescriptorName]int) error {
	for name, fd := range byName {
		if err := check(name, fd, wanted[name]); err != nil {
			return err
		}
	}
	for _, pair := range samePairs {
		var a, b unix.Stat_t
		if err := unix.Fstat(byName[pair[0]], &a); err != nil {
			return refuse("fstat %s: %v", pair[0], err)
		}
		if err := unix.Fstat(byName[pair[1]], &b); err != nil {
			return refuse("fstat %s: %v", pair[1], err)
		}
		if a.Dev != b.Dev || a.Ino != b.Ino {
			return refuse("%s and %s are different files", pair[0], pair[1])
		}
	}
	return nil
}

func check(name wire.DescriptorName, fd int, w want) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return refuse("fstat %s: %v", name, err)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return refuse("F_GETFL of %s: %v", name, err)
	}
	mode := flags & unix.O_ACCMODE
	switch {
	case st.Mode&unix.S_IFMT != w.kind:
		return refuse("%s has the file type %#o, not %#o", name, st.Mode&unix.S_IFMT, w.kind)
	case w.read && mode == unix.O_WRONLY:
		return refuse("%s can't be read", name)
	case w.write && mode == unix.O_RDONLY:
		return refuse("%s can't be written", name)
	case flags&unix.O_APPEND != 0:
		return refuse("%s appends; splice(2) refuses such a file", name)
	}
	return nil
}

func build(byName map[wire.DescriptorName]int) (*Set, error) {
	file := func(name wire.DescriptorName) *File { return NewFile(byName[name], string(name)) }
	s := &Set{
		StdoutSpool: file(wire.FDStdoutSpool), StderrSpool: file(wire.FDStderrSpool),
		StdoutRead: file(wire.FDStdoutRead), StderrRead: file(wire.FDStderrRead),
		Index: file(wire.FDIndex), ControlLog: file(wire.FDControlLog),
		InputSplice: file(wire.FDInputSplice), InputData: file(wire.FDInputData),
		ExitSpool: file(wire.FDExitSpool), ExitRead: file(wire.FDExitRead),
	}
	var firstErr error
	for _, p := range []struct {
		name wire.DescriptorName
		to   **Pipe
	}{{wire.FDStdin, &s.Stdin}, {wire.FDStdout, &s.Stdout}, {wire.FDStderr, &s.Stderr}, {wire.FDExit, &s.Exit}} {
		fd, ok := byName[p.name]
		if !ok {
			continue
		}
		pipe, err := NewPipe(fd, string(p.name))
		if err != nil {
			firstErr = err
			continue
		}
		*p.to = pipe
	}
	var err error
	if s.Listener, err = adoptListener(byName[wire.FDListener], wire.FDListener); err != nil {
		firstErr = err
	}
	if fd, ok := byName[wire.FDCustody]; ok {
		if s.Custody, err = adoptListener(fd, wire.FDCustody); err != nil {
			firstErr = err
		}
	}
	if firstErr != nil {
		s.Close()
		return nil, refuse("%v", firstErr)
	}
	return s, nil
}

func adoptListener(fd int, name wire.DescriptorName) (*net.UnixListener, error) {
	f := os.NewFile(uintptr(fd), string(name))
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("adopt listener: %w", err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, fmt.Errorf("adopt listener: it is not a Unix socket")
	}
	// The socket's path belongs to the broker, and the next bridge needs it.
	u.SetUnlinkOnClose(false)
	return u, nil
}

// Close closes everything that is open. It may be called more than once for
// the pipes and the listener, which others close earlier.
func (s *Set) Close() {
	for _, p := range []*Pipe{s.Stdin, s.Stdout, s.Stderr, s.Exit} {
		if p != nil {
			p.Close()
		}
	}
	for _, l := range []*net.UnixListener{s.Listener, s.Custody} {
		if l != nil {
			l.Close()
		}
	}
	for _, f := range []*File{s.StdoutSpool, s.StderrSpool, s.StdoutRead, s.StderrRead, s.Index, s.ControlLog, s.InputSplice, s.InputData, s.ExitSpool, s.ExitRead} {
		f.Close()
	}
}

func refuse(format string, args ...any) *wire.Error {
	return &wire.Error{
		Code:    wire.CodeInvalidConfig,
		Message: fmt.Sprintf("the session's descriptors can't be used: "+format, args...),
		Advice:  "this is a fault between broker and bridge: check that both are of one release",
	}
}
