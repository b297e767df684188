package rootfs

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	unix.Umask(0o022)
	goleak.VerifyTestMain(m)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newStore returns an empty store in a folder of the test's own.
func newStore(t testing.TB) *Store {
	t.Helper()
	rootonly.Test(t)
	l, err := layout.At(tempDir(t))
	must(t, err)
	return At(l)
}

// tempDir returns a folder in memory, where there is one: a busy disk makes
// thousands of small imports slow.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "rootfs-")
	if err != nil {
		return t.TempDir()
	}
	must(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

// noFlush is for tests that import often: bringing a busy disk up to date
// takes seconds.
func noFlush(int) error { return nil }

// entry is one entry of an archive. Raw, if any, is written instead.
type entry struct {
	tar.Header
	body string
	raw  []byte
}

func dir(name string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}}
}

func file(name, body string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(body))}, body: body}
}

func symlink(name, to string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}}
}

func hardLink(name, to string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to, Mode: 0o644}}
}

func special(name string, typeflag byte) entry {
	return entry{Header: tar.Header{Typeflag: typeflag, Name: name, Mode: 0o600}}
}

func (e entry) mode(mode int64) entry { e.Mode = mode; return e }

func (e entry) owned(uid, gid int) entry { e.Uid, e.Gid = uid, gid; return e }

func (e entry) record(key, value string) entry {
	e.PAXRecords = map[string]string{key: value}
	return e
}

// raw is an entry that archive/tar does not write: a ustar header with these
// fields, and content.
func raw(name string, typeflag byte, link string, size int64, body string) entry {
	b := make([]byte, 512)
	copy(b[0:100], name)
	copy(b[100:], "0000644\x00")
	copy(b[108:], "0000000\x00")
	copy(b[116:], "0000000\x00")
	copy(b[124:], fmt.Sprintf("%011o\x00", size))
	copy(b[136:], "00000000000\x00")
	copy(b[148:], "        ")
	b[156] = typeflag
	copy(b[157:257], link)
	copy(b[257:], "ustar\x0000")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	b = append(b, body...)
	return entry{raw: append(b, make([]byte, (512-len(body)%512)%512)...)}
}

// pax is a raw extended header with these records, each of the form key=value.
func pax(records ...string) entry {
	var body strings.Builder
	for _, r := range records {
		n := len(r) + 3
		for len(fmt.Sprint(n))+len(r)+2 != n {
			n = len(fmt.Sprint(n)) + len(r) + 2
		}
		fmt.Fprintf(&body, "%d %s\n", n, r)
	}
	return raw("pax", tar.TypeXHeader, "", int64(body.Len()), body.String())
}

// pack writes an archive without its end.
func pack(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var all bytes.Buffer
	for _, e := range entries {
		if e.raw != nil {
			all.Write(e.raw)
			continue
		}
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		must(t, w.WriteHeader(&e.Header))
		_, err := io.WriteString(w, e.body)
		must(t, err)
		must(t, w.Flush())
		all.Write(b.Bytes())
	}
	return all.Bytes()
}

var end = make([]byte, 1024)

// archive is pack with the end.
func archive(t testing.TB, entries ...entry) []byte { return append(pack(t, entries...), end...) }

func compress(t testing.TB, b []byte) []byte {
	t.Helper()
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	_, err := w.Write(b)
	must(t, errors.Join(err, w.Close()))
	return z.Bytes()
}

// wantCode fails unless err has the code and says what to do.
func wantCode(t testing.TB, err error, code wire.Code) {
	t.Helper()
	var e *wire.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("got %v, want code %s", err, code)
	}
	if e.Message == "" || e.Advice == "" {
		t.Errorf("the error says too little: %+v", e)
	}
}

// wantEmpty fails if anything is in the store.
func wantEmpty(t testing.TB, s *Store) {
	t.Helper()
	entries, err := os.ReadDir(s.dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("left in the store: %s", e.Name())
	}
}

func openFDs(t testing.TB) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(names)
}

// imported imports an archive and verifies what is in the store.
func imported(t testing.TB, s *Store, b []byte, o Options) *Result {
	t.Helper()
	r, err := s.ImportTar(context.Background(), bytes.NewReader(b), o)
	must(t, err)
	must(t, s.Verify(context.Background(), r.Digest, nil))
	return r
}

// tree is the path of an imported tree.
func (s *Store) tree(r *Result, name string) string {
	return filepath.Join(s.Location(r.Digest).Path, name)
}
