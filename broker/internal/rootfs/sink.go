package rootfs

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

type kind byte

const (
	kindDir kind = iota + 1
	kindFile
	kindSymlink
	kindHardLink
	kindSpecial
)

// node is an entry of a source.
type node struct {
	name   string // clean and relative; "." is the tree itself
	kind   kind
	mode   uint32 // permission bits up to 07777
	size   int64  // of a file, in bytes
	target string // of a symlink; of a hard link a clean name
	mtime  time.Time
	body   io.Reader // of a file
	// special is the class of what is neither file, folder nor link.
	special Class
	// foreign: root does not own it. linked: a file with more than one name.
	foreign, linked, capabilities, attributes bool
}

// fate is what an import did with a name.
type fate struct {
	kind kind
	left bool // it was left out
}

// sink writes entries into the tree that is open as root, and is the one place
// that does. It is not safe for concurrent use.
type sink struct {
	policy
	limits
	ctx      context.Context
	root     int
	progress func(bytes int64, entries int)

	seen      map[string]fate
	bytesSeen int64 // the contents so far
	nameBytes int64
	parent    string // the folder that parentFD is open on
	parentFD  int
	buf       []byte
}

func newSink(ctx context.Context, root int, o Options, l limits) *sink {
	return &sink{
		policy: policy{normalize: o.Normalize, found: make(map[Class]*Change)}, limits: l, ctx: ctx, root: root,
		progress: o.Progress, seen: make(map[string]fate), parentFD: -1, buf: make([]byte, 256<<10),
	}
}

// close gives the sink's own descriptor back.
func (s *sink) close() {
	if s.parentFD >= 0 {
		unix.Close(s.parentFD)
	}
	s.parentFD = -1
}

// add writes an entry, or refuses it.
func (s *sink) add(n *node) error {
	if err := s.ctx.Err(); err != nil {
		return ioFail(context.Cause(s.ctx), "the import was stopped")
	}
	if err := s.count(n); err != nil {
		return err
	}
	left, err := s.place(n)
	if err != nil {
		return err
	}
	keep, err := s.apply(n)
	if err != nil {
		return err
	}
	if keep && left {
		return fail(CodeForbidden, nil, "%.200q lies below something that was left out", n.name)
	}
	if keep {
		err = s.write(n)
	} else {
		err = s.discard(n)
	}
	became := n.kind
	if became == kindHardLink {
		became = kindFile
	}
	s.seen[n.name] = fate{became, !keep}
	return err
}

// count holds an entry to the limits.
func (s *sink) count(n *node) error {
	if err := checkLength(n.name); err != nil {
		return err
	}
	s.nameBytes += int64(len(n.name) + len(n.target))
	switch {
	case len(s.seen) >= s.entries:
		return fail(CodeTooLarge, nil, "there are more than %d entries", s.entries)
	case s.nameBytes > s.names:
		return fail(CodeTooLarge, nil, "the names have more than %d bytes together", s.names)
	case n.size < 0 || n.size > s.bytes-s.bytesSeen:
		return fail(CodeTooLarge, nil, "with %.200q the files have more than %d bytes together", n.name, s.bytes)
	}
	if n.kind == kindSymlink {
		return checkTarget(n.name, n.target)
	}
	return nil
}

// place makes sure that the name is free and lies in a folder that this import
// made, or that it left out.
func (s *sink) place(n *node) (left bool, err error) {
	if _, taken := s.seen[n.name]; taken {
		return false, fail(CodeArchiveInvalid, nil, "%.200q comes twice", n.name)
	}
	if n.name == "." {
		if n.kind != kindDir {
			return false, fail(CodeArchiveInvalid, nil, "the tree itself is no folder")
		}
		return false, nil
	}
	up := path.Dir(n.name)
	in, known := s.seen[up]
	switch {
	case !known && up == ".":
		return false, nil
	case !known:
		return false, fail(CodeArchiveInvalid, nil, "%.200q comes before the folder that it is in", n.name)
	case in.kind == kindSymlink:
		return false, fail(CodeEscape, nil, "%.200q lies below a symlink", n.name)
	case in.kind != kindDir:
		return false, fail(CodeArchiveInvalid, nil, "%.200q lies below what is no folder", n.name)
	}
	return in.left, nil
}

func (s *sink) write(n *node) error {
	if n.name == "." {
		return s.finishDir(s.root, n)
	}
	at, err := s.open(path.Dir(n.name))
	if err != nil {
		return ioFail(err, "the folder of %.200q can't be opened", n.name)
	}
	base := path.Base(n.name)
	switch n.kind {
	case kindDir:
		err = s.writeDir(at, base, n)
	case kindSymlink:
		err = unix.Symlinkat(n.target, at, base)
	case kindHardLink:
		err = s.copy(at, base, n)
	default:
		err = s.writeFile(at, base, n)
	}
	if err != nil {
		return ioFail(err, "%.200q can't be written", n.name)
	}
	return nil
}

// open returns the folder of this name in the tree. It stays the sink's.
func (s *sink) open(dir string) (int, error) {
	if s.parentFD >= 0 && s.parent == dir {
		return s.parentFD, nil
	}
	s.close()
	fd, err := openBeneath(s.root, dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	s.parent, s.parentFD = dir, fd
	return fd, nil
}

func (s *sink) writeDir(at int, base string, n *node) error {
	if err := unix.Mkdirat(at, base, 0o700); err != nil {
		return err
	}
	fd, err := openBeneath(at, base, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return s.finishDir(fd, n)
}

func (s *sink) finishDir(fd int, n *node) error {
	return errors.Join(unix.Fchown(fd, 0, 0), unix.Fchmod(fd, n.mode))
}

// writeFile makes a new file and nothing else: O_EXCL follows no link and
// opens no file that is there.
func (s *sink) writeFile(at int, base string, n *node) error {
	fd, err := unix.Openat(at, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), n.name)
	defer f.Close()
	got, err := io.CopyBuffer(onlyWriter{f}, io.LimitReader(counted{s, n.body}, n.size+1), s.buf)
	if err != nil {
		return err
	}
	if got != n.size {
		return fail(CodeSourceChanged, nil, "%.200q has another size than when it was begun", n.name)
	}
	if err := errors.Join(unix.Fchown(fd, 0, 0), unix.Fchmod(fd, n.mode)); err != nil {
		return err
	}
	// The time is no part of the digest, but interpreters compare it with that
	// of what they compiled.
	stamp := unix.NsecToTimespec(n.mtime.UnixNano())
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, fdPath(fd), []unix.Timespec{stamp, stamp}, 0); err != nil {
		return err
	}
	return f.Close()
}

// copy makes a file of a hard link, with the content and mode of a file that
// this import wrote.
func (s *sink) copy(at int, base string, n *node) error {
	to, known := s.seen[n.target]
	switch {
	case !known:
		return fail(CodeEscape, nil, "%.200q is a hard link to %.200q, which does not come before it", n.name, n.target)
	case to.kind != kindFile || to.left:
		return fail(CodeEscape, nil, "%.200q is a hard link to %.200q, which is no file of the tree", n.name, n.target)
	}
	fd, err := openBeneath(s.root, n.target, unix.O_RDONLY)
	if err != nil {
		return err
	}
	source := os.NewFile(uintptr(fd), n.target)
	defer source.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Size > s.bytes-s.bytesSeen {
		return fail(CodeTooLarge, nil, "with copies of hard links the files have more than %d bytes together", s.bytes)
	}
	return s.writeFile(at, base, &node{
		name: n.name, kind: kindFile, mode: st.Mode & 0o7777, size: st.Size, body: source, mtime: time.Unix(st.Mtim.Unix()),
	})
}

// discard reads past the content of what is left out.
func (s *sink) discard(n *node) error {
	if n.body == nil {
		return nil
	}
	if _, err := io.CopyBuffer(onlyWriter{io.Discard}, counted{s, n.body}, s.buf); err != nil {
		return ioFail(err, "%.200q can't be read", n.name)
	}
	return nil
}

// addMountPoints makes the folders that sessions mount something on, and
// returns those that were missing.
func (s *sink) addMountPoints() ([]string, error) {
	made := []string{}
	for _, place := range mountPoints {
		if f, there := s.seen[place]; there && !f.left {
			continue
		}
		delete(s.seen, place)
		if err := s.add(&node{name: place, kind: kindDir, mode: 0o755}); err != nil {
			return nil, err
		}
		made = append(made, "/"+place)
	}
	return made, nil
}

// counted is the content of an entry: it counts, and ends with the context.
type counted struct {
	s *sink
	r io.Reader
}

func (c counted) Read(b []byte) (int, error) {
	if err := c.s.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(b)
	c.s.bytesSeen += int64(n)
	if c.s.progress != nil {
		c.s.progress(c.s.bytesSeen, len(c.s.seen))
	}
	return n, err
}

// onlyWriter hides ReadFrom, which would move bytes past the counter.
type onlyWriter struct{ io.Writer }
