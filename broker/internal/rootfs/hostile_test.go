package rootfs

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// hostile is an archive that must be refused, with this code, whether it is
// normalized or not.
type hostile struct {
	code    wire.Code
	archive []byte
}

func hostileNames(t *testing.T, victim string) map[string]hostile {
	long := strings.Repeat("x", 200)
	return map[string]hostile{
		"absolute name":                {CodeEscape, archive(t, file("/etc/passwd", "x"))},
		"absolute name in PAX":         {CodeEscape, archive(t, pax("path="+victim), raw("x", tar.TypeReg, "", 0, ""))},
		"only a slash":                 {CodeEscape, archive(t, dir("/"))},
		"dot dot":                      {CodeEscape, archive(t, file("../victim", "x"))},
		"dot dot alone":                {CodeEscape, archive(t, dir(".."))},
		"dot dot with dot":             {CodeEscape, archive(t, file("./../victim", "x"))},
		"dot dot within":               {CodeEscape, archive(t, dir("a"), file("a/../../victim", "x"))},
		"dot dot at the end":           {CodeEscape, archive(t, dir("a"), dir("a/.."))},
		"dot dot in a GNU long name":   {CodeEscape, archive(t, raw("././@LongLink", 'L', "", 10, "../victim\x00"), raw("x", tar.TypeReg, "", 1, "x"))},
		"absolute in the ustar prefix": {CodeEscape, archive(t, file("/"+long+"/"+long[:50], "x"))},
		"empty name":                   {CodeArchiveInvalid, archive(t, raw("", tar.TypeReg, "", 0, ""))},
		"dot in the middle":            {CodeArchiveInvalid, archive(t, dir("a"), file("a/./b", "x"))},
		"two slashes":                  {CodeArchiveInvalid, archive(t, dir("a"), file("a//b", "x"))},
		"two dots slash":               {CodeArchiveInvalid, archive(t, file("././b", "x"))},
		"two slashes at the end":       {CodeArchiveInvalid, archive(t, dir("a//"))},
		"a file with a slash":          {CodeArchiveInvalid, archive(t, pax("path=a/"), raw("x", tar.TypeReg, "", 0, ""))},
		"NUL in a PAX name":            {CodeArchiveInvalid, archive(t, pax("path=a\x00b"), raw("x", tar.TypeReg, "", 0, ""))},
		"the same file twice":          {CodeArchiveInvalid, archive(t, file("a", "1"), file("a", "2"))},
		"the same file, with a dot":    {CodeArchiveInvalid, archive(t, file("a", "1"), file("./a", "2"))},
		"the same folder twice":        {CodeArchiveInvalid, archive(t, dir("a"), dir("a"))},
		"the root twice":               {CodeArchiveInvalid, archive(t, dir("./"), dir("./"))},
		"the root is a file":           {CodeArchiveInvalid, archive(t, file(".", "x"))},
		"the root is a symlink":        {CodeArchiveInvalid, archive(t, symlink(".", "/"))},
		"a file becomes a symlink":     {CodeArchiveInvalid, archive(t, file("a", "1"), symlink("a", victim))},
		"a folder becomes a symlink":   {CodeArchiveInvalid, archive(t, dir("a"), symlink("a", filepath.Dir(victim)), file("a/victim", "x"))},
		"through a symlink":            {CodeEscape, archive(t, symlink("a", filepath.Dir(victim)), file("a/victim", "x"))},
		"through a symlink to dot":     {CodeEscape, archive(t, dir("d"), symlink("a", "d"), file("a/x", "x"))},
		"through two symlinks":         {CodeEscape, archive(t, symlink("b", "../.."), symlink("a", "b"), file("a/victim", "x"))},
		"a folder through a symlink":   {CodeEscape, archive(t, symlink("a", "/"), dir("a/etc"))},
		"a mount point's symlink":      {CodeEscape, archive(t, symlink("home", filepath.Dir(victim)), dir("home/agent"))},
		"below a file":                 {CodeArchiveInvalid, archive(t, file("a", "1"), file("a/b", "x"))},
		"below a hard link":            {CodeArchiveInvalid, archive(t, file("a", "1"), hardLink("b", "a"), file("b/c", "x"))},
		"before its folder":            {CodeArchiveInvalid, archive(t, file("a/b", "x"), dir("a"))},
		"a part too long":              {CodeTooLarge, archive(t, file(strings.Repeat("x", 256), "x"))},
		"too long":                     {CodeTooLarge, archive(t, file(strings.Repeat("x/", 30)+strings.Repeat("xx/", 1500)+"x", "x"))},
		"too deep":                     {CodeTooLarge, archive(t, dir(strings.Repeat("x/", artifact.MaxDepth+1)))},
		"a symlink to nothing":         {CodeArchiveInvalid, archive(t, raw("a", tar.TypeSymlink, "", 0, ""))},
		"a symlink too far":            {CodeArchiveInvalid, archive(t, symlink("a", strings.Repeat("x", 5000)))},
	}
}

func hostileLinks(t *testing.T, victim string) map[string]hostile {
	return map[string]hostile{
		"hard link, absolute":            {CodeEscape, archive(t, hardLink("a", victim))},
		"hard link with dot dot":         {CodeEscape, archive(t, hardLink("a", "../../victim"))},
		"hard link to what is not there": {CodeEscape, archive(t, hardLink("a", "b"))},
		"hard link to what comes later":  {CodeEscape, archive(t, hardLink("a", "b"), file("b", "x"))},
		"hard link to itself":            {CodeEscape, archive(t, hardLink("a", "a"))},
		"hard link to a symlink":         {CodeEscape, archive(t, symlink("s", victim), hardLink("a", "s"))},
		"hard link through a symlink":    {CodeEscape, archive(t, symlink("s", filepath.Dir(victim)), hardLink("a", "s/victim"))},
		"hard link to a folder":          {CodeEscape, archive(t, dir("d"), hardLink("a", "d"))},
		"hard link to the root":          {CodeEscape, archive(t, dir("./"), hardLink("a", "."))},
		"hard link to a device":          {CodeEscape, archive(t, special("null", tar.TypeChar), hardLink("a", "null"))},
		"hard link to what is left out":  {CodeEscape, archive(t, dir("dev"), file("dev/x", ""), hardLink("a", "dev/x"))},
		"hard link over a file":          {CodeArchiveInvalid, archive(t, file("a", "1"), file("b", "2"), hardLink("b", "a"))},
	}
}

func hostileForms(t *testing.T) map[string]hostile {
	good := pack(t, dir("etc"), file("etc/passwd", strings.Repeat("x", 2000)))
	sparse := raw("sparse", tar.TypeGNUSparse, "", 0, "")
	return map[string]hostile{
		"empty":                      {CodeArchiveInvalid, nil},
		"one byte":                   {CodeArchiveInvalid, []byte("x")},
		"text":                       {CodeArchiveInvalid, bytes.Repeat([]byte("no archive "), 500)},
		"no end":                     {CodeArchiveInvalid, good},
		"half an end":                {CodeArchiveInvalid, append(bytes.Clone(good), end[:512]...)},
		"cut off in a header":        {CodeArchiveInvalid, good[:700]},
		"cut off in a file":          {CodeArchiveInvalid, good[:2000]},
		"cut off in gzip":            {CodeArchiveInvalid, compress(t, append(bytes.Clone(good), end...))[:60]},
		"damaged gzip":               {CodeArchiveInvalid, []byte("\x1f\x8b\x08 and then nothing of the kind")},
		"gzip of gzip":               {CodeArchiveInvalid, compress(t, compress(t, append(bytes.Clone(good), end...)))},
		"another archive behind":     {CodeArchiveInvalid, append(append(bytes.Clone(good), end...), archive(t, file("more", "x"))...)},
		"zeros without end":          {CodeTooLarge, append(bytes.Clone(good), make([]byte, 3<<20)...)},
		"a global header":            {CodeArchiveInvalid, archive(t, raw("g", tar.TypeXGlobalHeader, "", 19, "19 path=/etc/hosts\n"), file("a", "x"))},
		"an unknown type":            {CodeArchiveInvalid, archive(t, raw("a", 'Z', "", 0, ""))},
		"a contiguous file":          {CodeArchiveInvalid, archive(t, raw("a", tar.TypeCont, "", 0, ""))},
		"GNU sparse, old":            {CodeArchiveInvalid, append(bytes.Clone(sparse.raw), end...)},
		"GNU sparse, PAX 0.1":        {CodeArchiveInvalid, archive(t, pax("GNU.sparse.map=0,1", "GNU.sparse.numblocks=1", "GNU.sparse.size=1099511627776"), raw("a", tar.TypeReg, "", 1, "x"))},
		"GNU sparse, PAX 1.0":        {CodeArchiveInvalid, archive(t, pax("GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=x", "GNU.sparse.realsize=1099511627776"), raw("a", tar.TypeReg, "", 512, "0\n"+strings.Repeat("\x00", 510)))},
		"another character set":      {CodeArchiveInvalid, archive(t, pax("hdrcharset=BINARY"), raw("a", tar.TypeReg, "", 0, ""))},
		"a negative size":            {CodeArchiveInvalid, archive(t, pax("size=-1"), raw("a", tar.TypeReg, "", 0, ""))},
		"a size that overflows":      {CodeArchiveInvalid, archive(t, pax("size=99999999999999999999"), raw("a", tar.TypeReg, "", 0, ""))},
		"docker save":                {CodeArchiveInvalid, archive(t, file("manifest.json", "[]"), file("oci-layout", "{}"))},
		"an extended header too big": {CodeTooLarge, archive(t, pax("comment="+strings.Repeat("x", 100<<10)), raw("a", tar.TypeReg, "", 0, ""))},
		"one that is absurd":         {CodeTooLarge, archive(t, pax("comment="+strings.Repeat("x", 2<<20)), raw("a", tar.TypeReg, "", 0, ""))},
		"headers without end":        {CodeTooLarge, archive(t, manyHeaders()...)},
	}
}

// manyHeaders never come to an entry.
func manyHeaders() []entry {
	all := make([]entry, 0, 64)
	for range cap(all) {
		all = append(all, pax("comment="+strings.Repeat("x", 100<<10)))
	}
	return all
}

// R14 R16: an archive that aims outside of the tree, says one thing to one
// program and another to the next, or is damaged, is refused with its code,
// with and without normalization; nothing outside changes and nothing stays.
func TestHostileArchives(t *testing.T) {
	base := t.TempDir()
	victim := filepath.Join(base, "victim")
	for _, table := range []map[string]hostile{hostileNames(t, victim), hostileLinks(t, victim), hostileForms(t)} {
		for name, c := range table {
			t.Run(name, func(t *testing.T) {
				s := newStore(t)
				must(t, os.WriteFile(victim, []byte("untouched"), 0o600))
				fds := openFDs(t)
				for _, b := range [][]byte{c.archive, compress(t, c.archive)} {
					_, err := s.ImportTar(t.Context(), bytes.NewReader(b), Options{Normalize: true})
					wantCode(t, err, c.code)
					_, err = s.ImportTar(t.Context(), bytes.NewReader(b), Options{})
					if err == nil {
						t.Error("the strict import takes it")
					}
				}
				wantEmpty(t, s)
				if b, err := os.ReadFile(victim); err != nil || string(b) != "untouched" {
					t.Errorf("the victim is %q, %v", b, err)
				}
				if after := openFDs(t); after != fds {
					t.Errorf("%d descriptors before, %d after", fds, after)
				}
			})
		}
	}
}

// Bombs: each limit holds, and what was written until then is removed.
func TestLimits(t *testing.T) {
	zeros := strings.Repeat("\x00", 1<<20)
	for name, c := range map[string]struct {
		set     func(*limits)
		archive []byte
	}{
		"entries":          {func(l *limits) { l.entries = 3 }, archive(t, dir("a"), dir("b"), dir("c"), dir("d"))},
		"entries made":     {func(l *limits) { l.entries = 3 }, archive(t, dir("a"))},
		"one file":         {func(l *limits) { l.bytes = 100 }, archive(t, file("a", strings.Repeat("x", 101)))},
		"a size alone":     {func(*limits) {}, pack(t, raw("a", tar.TypeReg, "", 7<<30, ""), raw("b", tar.TypeReg, "", 7<<30, ""))},
		"many files":       {func(l *limits) { l.bytes = 100 }, archive(t, file("a", strings.Repeat("x", 60)), file("b", strings.Repeat("x", 60)))},
		"hard links":       {func(l *limits) { l.bytes = 100 }, archive(t, file("a", strings.Repeat("x", 40)), hardLink("b", "a"), hardLink("c", "b"))},
		"what is left out": {func(l *limits) { l.bytes = 100 }, archive(t, dir("dev"), file("dev/a", strings.Repeat("x", 60)), file("dev/b", strings.Repeat("x", 60)))},
		"names":            {func(l *limits) { l.names = 100 }, archive(t, dir(strings.Repeat("a", 60)), dir(strings.Repeat("b", 60)))},
		"targets":          {func(l *limits) { l.names = 100 }, archive(t, symlink("a", strings.Repeat("b", 100)))},
		"gzip":             {func(l *limits) { l.ratioFrom = 1 << 20 }, compress(t, archive(t, file("a", strings.Repeat(zeros, 32))))},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			c.set(&s.limits)
			_, err := s.ImportTar(t.Context(), bytes.NewReader(c.archive), Options{Normalize: true})
			if name == "a size alone" {
				// The first one is cut off, which is seen when it is read.
				wantCode(t, err, CodeArchiveInvalid)
				s.limits.bytes = 1 << 30
				_, err = s.ImportTar(t.Context(), bytes.NewReader(c.archive), Options{Normalize: true})
			}
			wantCode(t, err, CodeTooLarge)
			wantEmpty(t, s)
		})
	}
}
