package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// FuzzImportTar: whatever a stream holds, an import ends, with a tree that is
// what its manifest says or with a typed error that leaves nothing, and nothing
// beside the store changes (R14, R16).
func FuzzImportTar(f *testing.F) {
	for _, entries := range [][]entry{
		{dir("a"), file("a/b", "x"), symlink("c", "a/b"), hardLink("d", "a/b")},
		{dir("./"), file("./a", "x").mode(0o4755), special("null", tar.TypeChar), dir("dev"), file("dev/x", "y")},
		{symlink("a", ".."), file("a/victim", "x")},
		{file("../victim", "x")},
		{hardLink("a", "../../victim")},
		{pax("path=../victim"), raw("x", tar.TypeReg, "", 1, "x")},
		{pax("GNU.sparse.map=0,1", "GNU.sparse.numblocks=1", "GNU.sparse.size=1048576"), raw("a", tar.TypeReg, "", 1, "x")},
		{raw("././@LongLink", 'L', "", 10, "../victim\x00"), raw("x", tar.TypeReg, "", 1, "x")},
		{file("a", "x").record("SCHILY.xattr.security.capability", "x").owned(1, 1)},
		{file(strings.Repeat("long/", 30)+"name", "x")},
	} {
		f.Add(archive(f, entries...))
		f.Add(compress(f, archive(f, entries...)))
	}
	s := newStore(f)
	s.limits = limits{entries: 64, bytes: 1 << 20, names: 16 << 10, header: 1 << 20, attributes: 4 << 10, trailer: 64 << 10, ratio: 100, ratioFrom: 64 << 10}
	s.flush = noFlush
	victim := filepath.Join(filepath.Dir(s.layout.Var), "victim")
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 256<<10 {
			return
		}
		must(t, os.WriteFile(victim, []byte("untouched"), 0o600))
		for _, o := range []Options{{}, {Normalize: true}} {
			r, err := s.ImportTar(context.Background(), bytes.NewReader(b), o)
			if err == nil {
				must(t, s.Verify(context.Background(), r.Digest, nil))
				must(t, os.RemoveAll(filepath.Dir(s.Location(r.Digest).Path)))
			} else if e := (*wire.Error)(nil); !errors.As(err, &e) || e.Code == CodeFailed || e.Code == wire.CodeInternal {
				t.Fatalf("an untyped error: %v", err)
			}
			wantEmpty(t, s)
		}
		beside, err := os.ReadDir(filepath.Dir(victim))
		content, readErr := os.ReadFile(victim)
		if err != nil || readErr != nil || len(beside) > 2 || string(content) != "untouched" {
			t.Fatalf("beside the store: %v, %q, %v, %v", beside, content, err, readErr)
		}
	})
}
