package artifact

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var zeros = strings.Repeat("0", 64)

const header = "paseo-sandbox-artifact/1 tree\n"

// R16: the format is fixed to the byte, and the digest is that of its bytes.
func TestManifestGolden(t *testing.T) {
	sum := sha256.Sum256([]byte("hi"))
	want := header + "d 0755 0 0 .\n" +
		"l 0777 0 0 bin usr/bin\n" +
		"d 0755 0 0 dev\n" +
		"d 0755 0 0 usr\n" +
		"f 0644 0 0 2 " + hex.EncodeToString(sum[:]) + " usr/a%20b%25%FF\n"
	m, err := newManifest(KindTree, []Entry{
		{Path: ".", Type: TypeDir, Mode: 0o755},
		{Path: "bin", Type: TypeSymlink, Mode: 0o777, Target: "usr/bin"},
		{Path: "dev", Type: TypeDir, Mode: 0o755},
		{Path: "usr", Type: TypeDir, Mode: 0o755},
		{Path: "usr/a b%\xff", Type: TypeFile, Mode: 0o644, Size: 2, SHA256: sum},
	}, rootOwner)
	must(t, err)
	var b bytes.Buffer
	_, err = m.WriteTo(&b)
	must(t, err)
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	if digest := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(want))); m.Digest() != digest {
		t.Errorf("digest %s, want %s", m.Digest(), digest)
	}
	if _, err := ParseManifest([]byte(want)); err != nil {
		t.Error(err)
	}
}

// A mount point is a directory of the tree, not what a symlink leads to.
func TestHasDir(t *testing.T) {
	m, err := ParseManifest([]byte(header + "d 0755 0 0 .\nl 0777 0 0 bin usr/bin\nd 0755 0 0 dev\nd 0755 0 0 usr\nd 0755 0 0 usr/bin\nf 0644 0 0 0 " + zeros + " x\n"))
	must(t, err)
	for name, want := range map[string]bool{"/dev": true, "/usr/bin": true, "/bin": false, "/x": false, "/zz": false, "/a": false,
		"dev": false, "/": false, "": false, ".": false, "/.": false, "/usr/bin/": false, "//dev": false, "/usr/../dev": false} {
		if got := m.HasDir(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
	m, err = ParseManifest([]byte("paseo-sandbox-artifact/1 file\nf 0755 0 0 0 " + zeros + " .\n"))
	must(t, err)
	if m.HasDir("/dev") {
		t.Error("a file has a directory")
	}
}

// R16: everything but the canonical form of an allowed tree is refused.
func TestParseManifestRefuses(t *testing.T) {
	root := "d 0755 0 0 .\n"
	cases := []struct{ name, code, text string }{
		{"empty", CodeManifestInvalid, ""},
		{"header only", CodeManifestInvalid, header},
		{"no final newline", CodeManifestInvalid, header + "d 0755 0 0 ."},
		{"blank line", CodeManifestInvalid, header + root + "\n"},
		{"CR", CodeManifestInvalid, strings.ReplaceAll(header+root, "\n", "\r\n")},
		{"other version", CodeManifestInvalid, "paseo-sandbox-artifact/2 tree\n" + root},
		{"other kind", CodeManifestInvalid, "paseo-sandbox-artifact/1 bush\n" + root},
		{"no root", CodeManifestInvalid, header + "d 0755 0 0 etc\n"},
		{"root is a file", CodeManifestInvalid, header + "f 0755 0 0 0 " + zeros + " .\n"},
		{"root twice", CodeManifestInvalid, header + root + root},
		{"file kind with a directory", CodeManifestInvalid, "paseo-sandbox-artifact/1 file\n" + root},
		{"file kind with two", CodeManifestInvalid, "paseo-sandbox-artifact/1 file\nf 0755 0 0 0 " + zeros + " .\nf 0755 0 0 0 " + zeros + " a\n"},
		{"unsorted", CodeManifestInvalid, header + root + "d 0755 0 0 b\nd 0755 0 0 a\n"},
		{"duplicate", CodeManifestInvalid, header + root + "d 0755 0 0 a\nd 0755 0 0 a\n"},
		{"no parent", CodeManifestInvalid, header + root + "d 0755 0 0 a/b\n"},
		{"parent is a symlink", CodeManifestInvalid, header + root + "l 0777 0 0 a b\nd 0755 0 0 a/b\n"},
		{"absolute", CodeManifestInvalid, header + root + "d 0755 0 0 /etc\n"},
		{"dot dot", CodeManifestInvalid, header + root + "d 0755 0 0 ..\n"},
		{"beneath dot dot", CodeManifestInvalid, header + root + "d 0755 0 0 ../a\n"},
		{"unclean", CodeManifestInvalid, header + root + "d 0755 0 0 a\nd 0755 0 0 a//b\n"},
		{"trailing slash", CodeManifestInvalid, header + root + "d 0755 0 0 a/\n"},
		{"empty path", CodeManifestInvalid, header + root + "d 0755 0 0 \n"},
		{"NUL", CodeManifestInvalid, header + root + "d 0755 0 0 a%00\n"},
		{"path too long", CodeManifestInvalid, header + root + "d 0755 0 0 " + strings.Repeat("a", MaxPathBytes+1) + "\n"},
		{"needless escape", CodeManifestInvalid, header + root + "d 0755 0 0 %61\n"},
		{"lower-case escape", CodeManifestInvalid, header + root + "d 0755 0 0 %ff\n"},
		{"half an escape", CodeManifestInvalid, header + root + "d 0755 0 0 a%F\n"},
		{"raw control byte", CodeManifestInvalid, header + root + "d 0755 0 0 a\x01\n"},
		{"short mode", CodeManifestInvalid, header + root + "d 755 0 0 a\n"},
		{"mode with sign", CodeManifestInvalid, header + root + "d +755 0 0 a\n"},
		{"leading zero uid", CodeManifestInvalid, header + root + "d 0755 00 0 a\n"},
		{"huge uid", CodeManifestInvalid, header + root + "d 0755 4294967296 0 a\n"},
		{"negative size", CodeManifestInvalid, header + root + "f 0644 0 0 -1 " + zeros + " a\n"},
		{"huge size", CodeManifestInvalid, header + root + "f 0644 0 0 9223372036854775807 " + zeros + " a\n"},
		{"short digest", CodeManifestInvalid, header + root + "f 0644 0 0 1 00 a\n"},
		{"upper-case digest", CodeManifestInvalid, header + root + "f 0644 0 0 1 " + strings.Repeat("A", 64) + " a\n"},
		{"missing field", CodeManifestInvalid, header + root + "f 0644 0 0 1 a\n"},
		{"extra field", CodeManifestInvalid, header + root + "d 0755 0 0 a b\n"},
		{"unknown type", CodeManifestInvalid, header + root + "c 0755 0 0 a\n"},
		{"no target", CodeManifestInvalid, header + root + "l 0777 0 0 a \n"},
		{"foreign uid", CodeNotRootOwned, header + root + "d 0755 1 0 a\n"},
		{"foreign gid", CodeNotRootOwned, header + root + "d 0755 0 1 a\n"},
		{"setuid", CodeForbiddenEntry, header + root + "f 4755 0 0 0 " + zeros + " a\n"},
		{"world-writable", CodeForbiddenEntry, header + root + "d 0777 0 0 a\n"},
		{"mode too large", CodeForbiddenEntry, header + root + "d 10755 0 0 a\n"},
		{"symlink with a mode", CodeForbiddenEntry, header + root + "l 0755 0 0 a b\n"},
		{"dev is a symlink", CodeForbiddenEntry, header + root + "l 0777 0 0 dev /dev\n"},
		{"something in dev", CodeForbiddenEntry, header + root + "d 0755 0 0 dev\nd 0755 0 0 dev/pts\n"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseManifest([]byte(c.text))
			wantCode(t, err, c.code)
		})
	}
}

// R16: limits hold before anything large is made.
func TestParseManifestLimits(t *testing.T) {
	_, err := ParseManifest(make([]byte, MaxManifestBytes+1))
	wantCode(t, err, CodeManifestInvalid)
	_, err = ParseManifest([]byte(header + strings.Repeat("x\n", MaxEntries+1)))
	wantCode(t, err, CodeManifestInvalid)
	deep := header + "d 0755 0 0 .\n"
	for i := range MaxDepth + 1 {
		deep += "d 0755 0 0 a" + strings.Repeat("/a", i) + "\n"
	}
	_, err = ParseManifest([]byte(deep))
	wantCode(t, err, CodeManifestInvalid)
}

// A path of any bytes survives the escape, within one field of one line.
func TestEscape(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOf(rapid.Byte()).Draw(t, "path"))
		line := escape(in)
		if strings.ContainsAny(line, " \n\r\x00") {
			t.Fatalf("%q is no single field", line)
		}
		if out, err := unescape(line); err != nil || out != in {
			t.Fatalf("%q became %q, %v", in, out, err)
		}
	})
}

// R16: whatever parses is canonical: encoding it gives the same bytes.
func FuzzParseManifest(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ParseManifest(data)
		if err != nil {
			return
		}
		var b bytes.Buffer
		if _, err := m.WriteTo(&b); err != nil || !bytes.Equal(b.Bytes(), data) {
			t.Fatalf("%q was parsed and became %q (%v)", data, b.Bytes(), err)
		}
		for i, e := range m.Entries {
			if e.UID != 0 || e.GID != 0 || (e.Type != TypeSymlink && e.Mode&^0o755 != 0) {
				t.Fatalf("entry %d of %q should be refused", i, data)
			}
		}
	})
}
