package artifact

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Limits of a manifest. A larger artifact is refused.
const (
	MaxManifestBytes = 64 << 20
	MaxEntries       = 250_000
	MaxPathBytes     = 4095 // also of a symlink's target (PATH_MAX without its NUL)
	MaxDepth         = 64   // components of a path; a scan holds one descriptor for each
	MaxFileBytes     = 1 << 40
)

// Kind is what an artifact is.
type Kind string

// The kinds of artifact.
const (
	KindTree Kind = "tree" // a directory and all beneath it
	KindFile Kind = "file" // one regular file
)

// Type is the type of an entry.
type Type byte

// The types of entry. An artifact holds no others.
const (
	TypeDir     Type = 'd'
	TypeFile    Type = 'f'
	TypeSymlink Type = 'l'
)

// Entry describes one entry of an artifact.
type Entry struct {
	Path   string // relative, slash-separated, clean; "." is the artifact itself
	Type   Type
	Mode   uint32 // permission bits, octal 0 to 07777; 0777 for a symlink
	UID    uint32
	GID    uint32
	Size   int64             // of a regular file, in bytes
	SHA256 [sha256.Size]byte // of a regular file
	Target string            // of a symlink, never followed
}

// Manifest lists the entries of an artifact in ascending byte order of their
// paths, with "." first.
type Manifest struct {
	Kind    Kind
	Entries []Entry

	encoded []byte
	digest  string
}

const magic = "paseo-sandbox-artifact/1 "

// newManifest encodes the entries and checks them.
func newManifest(kind Kind, entries []Entry, want owner) (*Manifest, error) {
	b := []byte(magic + string(kind) + "\n")
	for i := range entries {
		b = append(append(b, entries[i].line()...), '\n')
	}
	if len(b) > MaxManifestBytes {
		return nil, errorf(CodeManifestInvalid, nil, "the manifest would have %d bytes, more than %d", len(b), MaxManifestBytes)
	}
	return checked(kind, entries, b, want)
}

// checked makes a manifest of entries and their encoding.
func checked(kind Kind, entries []Entry, encoded []byte, want owner) (*Manifest, error) {
	sum := sha256.Sum256(encoded)
	m := &Manifest{Kind: kind, Entries: entries, encoded: encoded, digest: "sha256:" + hex.EncodeToString(sum[:])}
	if err := m.check(want); err != nil {
		return nil, err
	}
	return m, nil
}

// Digest returns "sha256:" and the hexadecimal SHA-256 of the encoded manifest.
func (m *Manifest) Digest() string { return m.digest }

// HasDir says whether the absolute path name is a directory of the tree itself,
// with no symlink on the way: a place where something can be mounted.
func (m *Manifest) HasDir(name string) bool {
	rel := strings.TrimPrefix(name, "/")
	if rel == name || rel == "" {
		return false
	}
	i := 1 + sort.Search(len(m.Entries)-1, func(i int) bool { return m.Entries[i+1].Path >= rel })
	return i < len(m.Entries) && m.Entries[i].Path == rel && m.Entries[i].Type == TypeDir
}

// Bytes returns the size of all regular files together.
func (m *Manifest) Bytes() int64 {
	var n int64
	for i := range m.Entries {
		n += m.Entries[i].Size
	}
	return n
}

// WriteTo writes the encoded manifest.
func (m *Manifest) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(m.encoded)
	return int64(n), err
}

// line encodes an entry without its newline: type, mode, uid, gid, for a file
// size and digest, path, for a symlink the target.
func (e *Entry) line() string {
	head := fmt.Sprintf("%c %04o %d %d ", e.Type, e.Mode, e.UID, e.GID)
	switch e.Type {
	case TypeFile:
		return head + strconv.FormatInt(e.Size, 10) + " " + hex.EncodeToString(e.SHA256[:]) + " " + escape(e.Path)
	case TypeSymlink:
		return head + escape(e.Path) + " " + escape(e.Target)
	default:
		return head + escape(e.Path)
	}
}

// ParseManifest decodes a manifest. It accepts exactly the bytes that the
// encoder writes, within the limits, describing nothing that an artifact may
// not hold; a failure is an [Error].
func ParseManifest(data []byte) (*Manifest, error) { return parseManifest(data, rootOwner) }

func parseManifest(data []byte, want owner) (*Manifest, error) {
	invalid := func(line int, format string, args ...any) error {
		return errorf(CodeManifestInvalid, nil, "line %d of the manifest: %s", line, fmt.Sprintf(format, args...))
	}
	if len(data) > MaxManifestBytes {
		return nil, invalid(1, "the manifest has more than %d bytes", MaxManifestBytes)
	}
	if len(data) == 0 || data[len(data)-1] != '\n' {
		return nil, invalid(1, "the manifest is empty or its last line has no end")
	}
	lines := strings.Split(string(data[:len(data)-1]), "\n")
	kind, found := strings.CutPrefix(lines[0], magic)
	if !found || (kind != string(KindTree) && kind != string(KindFile)) {
		return nil, invalid(1, "the format or its version is unknown")
	}
	if len(lines)-1 > MaxEntries {
		return nil, invalid(1, "the manifest has more than %d entries", MaxEntries)
	}
	entries := make([]Entry, 0, len(lines)-1)
	for i, line := range lines[1:] {
		e, err := parseLine(line)
		if err != nil {
			return nil, invalid(i+2, "%v", err)
		}
		// One spelling for each entry, so that one tree has one digest.
		if e.line() != line {
			return nil, invalid(i+2, "the spelling is not canonical")
		}
		entries = append(entries, e)
	}
	return checked(Kind(kind), entries, slices.Clone(data), want)
}

func parseLine(line string) (Entry, error) {
	var e Entry
	f := strings.Split(line, " ")
	switch {
	case f[0] == "d" && len(f) == 5, f[0] == "f" && len(f) == 7, f[0] == "l" && len(f) == 6:
	default:
		return e, errors.New("an unknown type or a wrong number of fields")
	}
	e.Type = Type(f[0][0])
	var num [3]uint64
	for i, base := range [...]int{8, 10, 10} {
		n, err := strconv.ParseUint(f[i+1], base, 32)
		if err != nil {
			return e, errors.New("a number is out of range or malformed")
		}
		num[i] = n
	}
	e.Mode, e.UID, e.GID = uint32(num[0]), uint32(num[1]), uint32(num[2])
	rest := f[4:]
	if e.Type == TypeFile {
		size, err := strconv.ParseInt(rest[0], 10, 64)
		sum, sumErr := hex.DecodeString(rest[1])
		if err != nil || size < 0 || size > MaxFileBytes || sumErr != nil || len(sum) != sha256.Size {
			return e, errors.New("a size or digest is out of range or malformed")
		}
		e.Size, rest = size, rest[2:]
		copy(e.SHA256[:], sum)
	}
	var err error
	if e.Path, err = unescape(rest[0]); err == nil && e.Type == TypeSymlink {
		e.Target, err = unescape(rest[1])
	}
	return e, err
}

// check holds the list to its rules: order, shape of the tree, allowed entries.
func (m *Manifest) check(want owner) error {
	invalid := func(format string, args ...any) error {
		return errorf(CodeManifestInvalid, nil, format, args...)
	}
	if len(m.Entries) > MaxEntries {
		return invalid("the artifact has more than %d entries", MaxEntries)
	}
	rootType := map[Kind]Type{KindTree: TypeDir, KindFile: TypeFile}[m.Kind]
	if len(m.Entries) == 0 || m.Entries[0].Path != "." || m.Entries[0].Type != rootType {
		return invalid("the first entry is not the artifact itself")
	}
	if m.Kind == KindFile && len(m.Entries) > 1 {
		return invalid("a file artifact has more than one entry")
	}
	dirs := map[string]bool{".": true}
	for i := range m.Entries {
		e := &m.Entries[i]
		if i > 0 {
			if e.Path == "." || !validPath(e.Path) || (i > 1 && e.Path <= m.Entries[i-1].Path) {
				return invalid("the path %q is not clean, is too long, or is out of order", e.Path)
			}
			if !dirs[path.Dir(e.Path)] {
				return invalid("the parent of %q is not a directory of the artifact", e.Path)
			}
		}
		if e.Type == TypeDir {
			dirs[e.Path] = true
		}
		if e.Type == TypeSymlink && (e.Target == "" || len(e.Target) > MaxPathBytes || strings.Contains(e.Target, "\x00")) {
			return invalid("the target of symlink %q is empty, too long, or holds a NUL", e.Path)
		}
		if err := e.allowed(want); err != nil {
			return err
		}
	}
	return nil
}

func validPath(p string) bool {
	return len(p) <= MaxPathBytes && path.Clean(p) == p && p[0] != '/' && p != ".." &&
		!strings.HasPrefix(p, "../") && !strings.Contains(p, "\x00") && strings.Count(p, "/") < MaxDepth
}

// escape writes a path with everything but printable ASCII other than "%" as
// %XX, so that a line holds one space between fields and nothing else.
func escape(s string) string {
	plain := func(c byte) bool { return c > ' ' && c < 0x7f && c != '%' }
	first := 0
	for first < len(s) && plain(s[first]) {
		first++
	}
	if first == len(s) {
		return s
	}
	var b strings.Builder
	b.WriteString(s[:first])
	for i := first; i < len(s); i++ {
		if plain(s[i]) {
			b.WriteByte(s[i])
		} else {
			fmt.Fprintf(&b, "%%%02X", s[i])
		}
	}
	return b.String()
}

func unescape(s string) (string, error) {
	if !strings.Contains(s, "%") {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", errors.New("a path ends within an escape")
		}
		c, err := hex.DecodeString(s[i+1 : i+3])
		if err != nil {
			return "", errors.New("a path holds a malformed escape")
		}
		b.WriteByte(c[0])
		i += 2
	}
	return b.String(), nil
}
