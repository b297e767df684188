package rootfs

import (
	"archive/tar"
	"bufio"
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"strings"

	"golang.org/x/sys/unix"
)

// readTar adds what a tar stream holds, plain or compressed with gzip. The
// stream is read to its end.
func readTar(ctx context.Context, r io.Reader, s *sink) error {
	plain, err := decompress(interruptible{ctx, r}, s.limits)
	if err != nil {
		return err
	}
	m := &meter{r: plain}
	tr := tar.NewReader(m)
	for {
		m.left = s.header
		header, err := tr.Next()
		if err == io.EOF {
			return finishTar(m, s)
		}
		if err != nil {
			return tarError(err)
		}
		n, err := fromHeader(header, s.limits)
		if err != nil {
			return err
		}
		if n.kind == kindFile {
			n.body, m.left = tarBody{tr}, n.size
		}
		if err := s.add(n); err != nil {
			return err
		}
	}
}

// finishTar reads what follows the end of the archive, which must be zeros:
// whatever else it were, another program would read it. archive/tar also takes
// an archive for complete that was cut off between two entries.
func finishTar(m *meter, s *sink) error {
	if m.ended {
		return fail(CodeArchiveInvalid, nil, "the archive is cut off: its end is missing")
	}
	if f, there := s.seen["manifest.json"]; there && f.kind == kindFile {
		if _, layers := s.seen["oci-layout"]; layers {
			return fail(CodeArchiveInvalid, nil, "this is an image with its layers, as docker save writes it, and no root file system")
		}
	}
	m.left = s.trailer
	for {
		n, err := m.Read(s.buf)
		if strings.Trim(string(s.buf[:n]), "\x00") != "" {
			return fail(CodeArchiveInvalid, nil, "something follows the end of the archive")
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return tarError(err)
		}
	}
}

// fromHeader translates an entry's header. What this package does not know is
// refused, so that nothing is read differently than its writer meant it.
func fromHeader(h *tar.Header, l limits) (*node, error) {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil, fail(CodeArchiveInvalid, nil, "the archive has a global header, which means different things to different programs")
	}
	name, err := cleanName(h.Name, h.Typeflag == tar.TypeDir)
	if err != nil {
		return nil, err
	}
	n := &node{
		name: name, mode: uint32(h.Mode) & 0o7777, mtime: h.ModTime,
		foreign: h.Uid != 0 || h.Gid != 0,
	}
	if err := n.readRecords(h.PAXRecords, l); err != nil {
		return nil, err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		n.kind = kindDir
	case tar.TypeReg:
		n.kind, n.size = kindFile, h.Size
	case tar.TypeSymlink:
		n.kind, n.target = kindSymlink, h.Linkname
	case tar.TypeLink:
		n.kind = kindHardLink
		n.target, err = cleanName(h.Linkname, false)
	case tar.TypeChar, tar.TypeBlock:
		n.kind, n.special = kindSpecial, ClassDevice
	case tar.TypeFifo:
		n.kind, n.special = kindSpecial, ClassPipe
	default:
		err = fail(CodeArchiveInvalid, nil, "%.200q is of the type %q, which is not supported; sparse files need an archive without --sparse", name, h.Typeflag)
	}
	return n, err
}

// knownRecords are those of extended headers (pax(1)) that archive/tar has
// used, or that say nothing about the entry.
var knownRecords = map[string]bool{
	"path": true, "linkpath": true, "size": true, "uid": true, "gid": true, "uname": true, "gname": true,
	"mtime": true, "atime": true, "ctime": true, "comment": true, "LIBARCHIVE.creationtime": true,
	"SCHILY.dev": true, "SCHILY.ino": true, "SCHILY.nlink": true,
}

func (n *node) readRecords(records map[string]string, l limits) error {
	size := 0
	for key, value := range records {
		size += len(key) + len(value)
		switch {
		case strings.HasPrefix(key, "GNU.sparse."):
			return fail(CodeArchiveInvalid, nil, "%.200q is a sparse file, which is not supported; make the archive without --sparse", n.name)
		case key == "hdrcharset":
			return fail(CodeArchiveInvalid, nil, "%.200q has a name in another character set", n.name)
		case strings.HasSuffix(key, "xattr."+capabilities):
			n.capabilities = true
		case !knownRecords[key]:
			n.attributes = true
		}
	}
	if size > l.attributes {
		return fail(CodeTooLarge, nil, "the extended header of %.200q has more than %d bytes", n.name, l.attributes)
	}
	return nil
}

// capabilities is the attribute that holds file capabilities (capabilities(7)).
const capabilities = "security.capability"

// tarBody is the content of the current entry, with this package's errors.
type tarBody struct{ r *tar.Reader }

func (b tarBody) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err != nil && err != io.EOF {
		err = tarError(err)
	}
	return n, err
}

func tarError(err error) error {
	switch {
	case errors.Is(err, tar.ErrInsecurePath):
		return fail(CodeEscape, nil, "a name is absolute or has .. in it")
	case errors.Is(err, tar.ErrFieldTooLong):
		return fail(CodeTooLarge, nil, "an extended header is too long")
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return fail(CodeArchiveInvalid, nil, "the archive is cut off")
	case errors.Is(err, tar.ErrHeader):
		return fail(CodeArchiveInvalid, err, "it is no tar archive, plain or compressed with gzip, or it is damaged")
	}
	return ioFail(err, "the archive can't be read")
}

// meter bounds what is read of a stream until it is set anew.
type meter struct {
	r     io.Reader
	left  int64
	ended bool // the stream ended at a read
}

func (m *meter) Read(b []byte) (int, error) {
	if m.left <= 0 && len(b) > 0 {
		return 0, fail(CodeTooLarge, nil, "a header of the archive, or what follows its end, is too long")
	}
	n, err := m.r.Read(b[:min(int64(len(b)), m.left)])
	m.left -= int64(n)
	m.ended = m.ended || n == 0 && err == io.EOF
	return n, err
}

// decompress looks at the first bytes. A stream of one gzip member after the
// other is taken, as gzip(1) takes it.
func decompress(r io.Reader, l limits) (io.Reader, error) {
	in := &counter{r: r}
	b := bufio.NewReaderSize(in, 64<<10)
	head, err := b.Peek(2)
	if err != nil && err != io.EOF {
		return nil, tarError(err)
	}
	if string(head) != "\x1f\x8b" {
		return b, nil
	}
	z, err := gzip.NewReader(b)
	if err != nil {
		return nil, gzipError(err)
	}
	return &inflater{z: z, in: in, l: l}, nil
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

// inflater stops when the stream grows beyond reason.
type inflater struct {
	z   *gzip.Reader
	in  *counter
	out int64
	l   limits
}

func (i *inflater) Read(b []byte) (int, error) {
	n, err := i.z.Read(b)
	i.out += int64(n)
	if i.out > i.l.ratioFrom && i.out/i.l.ratio > i.in.n {
		return 0, fail(CodeTooLarge, nil, "the archive grows to more than %d times its size", i.l.ratio)
	}
	if err != nil && err != io.EOF {
		err = gzipError(err)
	}
	return n, err
}

func gzipError(err error) error {
	var corrupt flate.CorruptInputError
	if errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.As(err, &corrupt) {
		return fail(CodeArchiveInvalid, err, "the compressed archive is damaged")
	}
	return tarError(err)
}

// interruptible ends with the context, between two reads.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (i interruptible) Read(b []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := i.r.Read(b)
	if errors.Is(err, unix.EINTR) {
		err = nil
	}
	return n, err
}
