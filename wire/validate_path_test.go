package wire

import (
	"path"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzPaths: a folder or path is let through exactly if a model says so, and
// what is let through stays below the folder that it is joined to (R10, R14).
func FuzzPaths(f *testing.F) {
	for _, s := range []string{
		"", "a", "a/b", "..", "../a", "a/..", "a/../b", "...", "..a", ".", "./a", "a/.", "/", "//", "/a", "/a/", "a//b", "a\x00b", "\xff",
		strings.Repeat("x", MaxPathElement), strings.Repeat("x", MaxPathElement+1), strings.Repeat("x/", MaxPath/2-1) + "x", strings.Repeat("x/", MaxPath/2) + "x",
	} {
		f.Add(s)
		f.Add("/" + s)
	}
	const root = "/srv/root"
	f.Fuzz(func(t *testing.T, s string) {
		elements := strings.Split(strings.TrimPrefix(s, "/"), "/")
		fits := len(strings.TrimPrefix(s, "/")) < MaxPath && !slices.ContainsFunc(elements, func(e string) bool { return len(e) > MaxPathElement })
		text := utf8.ValidString(s) && !strings.Contains(s, "\x00")
		plain := fits && text && path.Clean(s) == s && s != "." && s != "/" && !slices.Contains(elements, "..")
		if got, want := checkFolder(s) == nil, s == "" || plain && s[0] != '/'; got != want {
			t.Errorf("the folder %q: got %v, want %v", s, got, want)
		}
		if got, want := checkPath(s) == nil, s == "" || plain && s[0] == '/'; got != want {
			t.Errorf("the path %q: got %v, want %v", s, got, want)
		}
		if checkFolder(s) == nil && s != "" {
			if joined := path.Join(root, s); joined != root+"/"+s || !strings.HasPrefix(joined, root+"/") {
				t.Errorf("%q leads to %q", s, joined)
			}
		}
	})
}

// R14: each malformed folder and path has a code of its own, also when more
// than one thing is wrong with it.
func TestPathCodes(t *testing.T) {
	for _, c := range []struct {
		folder, path string
		code         Code
	}{
		{"..", "/..", CodePathParent}, {"a/../b", "/a/../b", CodePathParent}, {"a/", "/a/", CodePathNotClean}, {".", "/.", CodePathNotClean},
		{"a//b", "//", CodePathNotClean}, {"a\x00", "/a\x00", CodePathNUL}, {"\xff", "/\xff", CodeInvalidMessage},
		{strings.Repeat("x", 256), "/" + strings.Repeat("x", 256), CodePathTooLong}, {strings.Repeat("../", 1000), "/" + strings.Repeat("../", 1000), CodePathTooLong},
		{"/a", "a", ""}, {"/..", "..", ""},
	} {
		wantFolder, wantPath := c.code, c.code
		if c.code == "" {
			wantFolder, wantPath = CodePathAbsolute, CodePathRelative
		}
		if got := CodeOf(checkFolder(c.folder)); got != wantFolder {
			t.Errorf("the folder %.40q: %s, want %s", c.folder, got, wantFolder)
		}
		if got := CodeOf(checkPath(c.path)); got != wantPath {
			t.Errorf("the path %.40q: %s, want %s", c.path, got, wantPath)
		}
	}
}
