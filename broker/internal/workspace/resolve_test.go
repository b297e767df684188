package workspace

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// wantRefusal wants a code, a message for clients without a path of the host,
// and advice.
func wantRefusal(t *testing.T, d *Dir, err error, code wire.Code, base string) {
	t.Helper()
	if err == nil {
		d.Close()
	}
	var e *wire.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("got %v, want %s", err, code)
	}
	if e.Message == "" || e.Advice == "" || strings.Contains(e.Message+e.Advice, base) {
		t.Errorf("the client is told %q, %q", e.Message, e.Advice)
	}
}

// R14: each malformed or dangerous root is refused, with a code of its own.
func TestOpenRefuses(t *testing.T) {
	h := newHost(t)
	link := func(at, to string) string {
		must(t, os.Symlink(to, filepath.Join(h.base, at)))
		return filepath.Join(h.base, at)
	}
	file := filepath.Join(h.base, "file")
	must(t, os.WriteFile(file, nil, 0o644))
	for name, c := range map[string]struct {
		root string
		code wire.Code
	}{
		"empty":                  {"", wire.CodeWorkspaceUnresolvable},
		"NUL":                    {h.root + "\x00", wire.CodeWorkspaceUnresolvable},
		"relative":               {"work", wire.CodeWorkspaceUnresolvable},
		"the root":               {"/", wire.CodeWorkspaceUnresolvable},
		"dot dot":                {h.root + "/../work", wire.CodeWorkspaceUnresolvable},
		"dot":                    {h.base + "/./a", wire.CodeWorkspaceUnresolvable},
		"double slash":           {h.base + "//a", wire.CodeWorkspaceUnresolvable},
		"trailing slash":         {h.root + "/", wire.CodeWorkspaceUnresolvable},
		"missing":                {h.root + "/none", wire.CodePathMissing},
		"a file":                 {file, wire.CodePathNotFolder},
		"below a file":           {file + "/x", wire.CodePathNotFolder},
		"too long":               {"/" + strings.Repeat("x", 5000), wire.CodePathTooLong},
		"a link":                 {link("l1", h.root), wire.CodePathSymlink},
		"a link in the middle":   {link("l2", filepath.Join(h.base, "a")) + "/b/work", wire.CodePathSymlink},
		"a link to the root":     {link("l3", "/") + "/etc", wire.CodePathSymlink},
		"a link to nothing":      {link("l4", "/nonexistent"), wire.CodePathSymlink},
		"a magic link":           {"/proc/self/cwd", wire.CodePathSymlink},
		"a magic link in middle": {"/proc/self/root/etc", wire.CodePathSymlink},
		"not UTF-8 and missing":  {h.base + "/\xff\xfe", wire.CodePathMissing},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Open(c.root)
			wantRefusal(t, d, err, c.code, h.base)
		})
	}
}

// R14: the registered root is deleted, or replaced by a link or a file; and
// replaced by another folder, which is the workspace from then on.
func TestReplacedRoot(t *testing.T) {
	for name, c := range map[string]struct {
		change func(root string) error
		code   wire.Code
	}{
		"deleted":   {func(string) error { return nil }, wire.CodePathMissing},
		"a link":    {func(root string) error { return os.Symlink("/etc", root) }, wire.CodePathSymlink},
		"a file":    {func(root string) error { return os.WriteFile(root, nil, 0o644) }, wire.CodePathNotFolder},
		"a pipe":    {func(root string) error { return unix.Mkfifo(root, 0o644) }, wire.CodePathNotFolder},
		"a device":  {func(root string) error { return unix.Mknod(root, unix.S_IFCHR|0o600, 0) }, wire.CodePathNotFolder},
		"a folder":  {func(root string) error { return os.Mkdir(root, 0o755) }, ""},
		"a renamed": {func(root string) error { return os.Rename(root+"-old", root) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			must(t, os.Rename(h.root, h.root+"-old"))
			must(t, c.change(h.root))
			d, err := Open(h.root)
			if c.code != "" {
				wantRefusal(t, d, err, c.code, h.base)
				return
			}
			must(t, err)
			defer d.Close()
			target, err := h.pinDir(d, "one", false)
			must(t, err)
			if identify(t, target) != identify(t, h.root) {
				t.Error("another folder is pinned")
			}
		})
	}
}

// identity is a device and an inode.
type identity struct{ dev, ino uint64 }

func identify(t *testing.T, path string) identity {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return identity{st.Dev, st.Ino}
}

// R13 R14: a folder below the workspace is found beneath it or not at all.
func TestSub(t *testing.T) {
	h := newHost(t)
	at := func(path string) string { return filepath.Join(h.root, path) }
	must(t, os.MkdirAll(at("x/y/z"), 0o755))
	must(t, os.WriteFile(at("x/file"), nil, 0o644))
	must(t, os.Mkdir(at("\xff\xfe"), 0o755))
	must(t, os.MkdirAll(at("m/n/o"), 0o755))
	must(t, unix.Mount("tmpfs", at("m/n"), "tmpfs", 0, "size=1m"))
	must(t, os.Mkdir(at("m/n/o"), 0o755))
	for _, depth := range []string{"l1", "x/l2", "x/y/l3"} {
		must(t, os.Symlink(at("x/y"), at(depth)))
	}
	must(t, os.Symlink(".", at("dot")))
	must(t, os.Symlink("/proc/self/root", at("root")))
	root, err := Open(h.root)
	must(t, err)
	defer root.Close()
	for name, c := range map[string]struct {
		folder string
		code   wire.Code
	}{
		"one":                   {"x", ""},
		"deep":                  {"x/y/z", ""},
		"not UTF-8":             {"\xff\xfe", ""},
		"beside a mount":        {"m", ""},
		"empty":                 {"", wire.CodeWorkspaceUnresolvable},
		"dot":                   {".", wire.CodeWorkspaceUnresolvable},
		"dot dot":               {"..", wire.CodeWorkspaceUnresolvable},
		"dot dot in the middle": {"x/../x", wire.CodeWorkspaceUnresolvable},
		"out and back":          {"../work/x", wire.CodeWorkspaceUnresolvable},
		"absolute":              {"/etc", wire.CodeWorkspaceUnresolvable},
		"trailing slash":        {"x/", wire.CodeWorkspaceUnresolvable},
		"NUL":                   {"x\x00", wire.CodeWorkspaceUnresolvable},
		"too long":              {strings.Repeat("x", 300), wire.CodePathTooLong},
		"missing":               {"x/none", wire.CodePathMissing},
		"a file":                {"x/file", wire.CodePathNotFolder},
		"below a file":          {"x/file/y", wire.CodePathNotFolder},
		"a link":                {"l1", wire.CodePathSymlink},
		"below a link":          {"l1/z", wire.CodePathSymlink},
		"a link, deeper":        {"x/l2", wire.CodePathSymlink},
		"below it":              {"x/l2/z", wire.CodePathSymlink},
		"a link, deepest":       {"x/y/l3", wire.CodePathSymlink},
		"below that":            {"x/y/l3/z", wire.CodePathSymlink},
		"a link to itself":      {"dot/x", wire.CodePathSymlink},
		"a link to a link":      {"root/etc", wire.CodePathSymlink},
		"a mount":               {"m/n", wire.CodePathCrossesMount},
		"below a mount":         {"m/n/o", wire.CodePathCrossesMount},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := root.Sub(c.folder)
			if c.code != "" {
				wantRefusal(t, d, err, c.code, h.base)
				return
			}
			must(t, err)
			defer d.Close()
			if name == "beside a mount" {
				_, err := h.pinDir(d, "refused", false)
				wantRefusal(t, nil, err, wire.CodeWorkspaceHasMounts, h.base)
				return
			}
			target, err := h.pinDir(d, strings.ReplaceAll(name, " ", "-"), false)
			must(t, err)
			if identify(t, target) != identify(t, at(c.folder)) {
				t.Error("another folder is pinned")
			}
		})
	}
}

// A kernel without openat2(2), or one that refuses to vouch for the walk for
// ever, is refused with a code of its own; errors are bounded in time.
func TestErrorsOfTheWalk(t *testing.T) {
	rootonly.Test(t)
	var how unix.OpenHow
	if _, err := unix.Openat2(unix.AT_FDCWD, "/", &how); err != nil {
		t.Fatalf("this kernel has no openat2: %v", err)
	}
	for errno, code := range map[unix.Errno]wire.Code{
		unix.EAGAIN: wire.CodePathUnstable, unix.EXDEV: wire.CodePathCrossesMount, unix.ELOOP: wire.CodePathSymlink,
		unix.ENOSYS: wire.CodeWorkspaceUnresolvable, unix.EACCES: wire.CodeWorkspaceUnresolvable, unix.EINTR: wire.CodeWorkspaceUnresolvable,
	} {
		calls := 0
		openat2 = func(int, string, *unix.OpenHow) (int, error) { calls++; return -1, errno }
		d, err := Open("/srv")
		openat2 = unix.Openat2
		wantRefusal(t, d, err, code, "/srv")
		if retried := errno == unix.EAGAIN || errno == unix.EXDEV || errno == unix.EINTR; retried != (calls == attempts) || !retried && calls != 1 {
			t.Errorf("%v: %d calls", errno, calls)
		}
	}
}
