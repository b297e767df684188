package artifact

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// self owns what these tests make, so that they need no root.
var self = owner{uint32(os.Getuid()), uint32(os.Getgid())}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantCode fails unless err is an Error with the code, a message and advice.
func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want an Error with code %s", err, code)
	}
	if e.ErrorCode() != code || e.Message == "" || e.ErrorAdvice() == "" {
		t.Fatalf("got code %q, message %q, advice %q; want code %s", e.Code, e.Message, e.Advice, code)
	}
}

func write(t *testing.T, name, content string, mode os.FileMode) {
	t.Helper()
	must(t, os.WriteFile(name, []byte(content), 0o600))
	must(t, os.Chmod(name, mode))
}

// newTree makes a small tree that has every allowed type of entry.
func newTree(t *testing.T) string {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	must(t, os.Chmod(base, 0o755))
	root := filepath.Join(base, "tree")
	for _, dir := range []string{".", "dev", "proc", "sys", "usr", "usr/bin", "usr-local", "empty"} {
		must(t, os.Mkdir(filepath.Join(root, dir), 0o755))
	}
	write(t, filepath.Join(root, "usr/bin/tool"), "a program", 0o755)
	write(t, filepath.Join(root, "usr/a file\nwith 100% odd bytes \xff"), "data", 0o644)
	write(t, filepath.Join(root, "usr/nothing"), "", 0o644)
	must(t, os.Symlink("usr/bin", filepath.Join(root, "bin")))
	must(t, os.Symlink("/nowhere at all", filepath.Join(root, "dangling")))
	return root
}

// seal builds the manifest of name and writes it beside it.
func seal(t *testing.T, name string) Location {
	t.Helper()
	m, err := build(t.Context(), name, self)
	must(t, err)
	loc := Location{Path: name, Manifest: filepath.Join(filepath.Dir(name), "manifest"), Digest: m.Digest()}
	f, err := os.Create(loc.Manifest)
	must(t, err)
	_, err = m.WriteTo(f)
	must(t, err)
	must(t, f.Chmod(0o644))
	must(t, f.Close())
	return loc
}

func openSelf(t *testing.T, loc Location) *Artifact {
	t.Helper()
	a, err := open(loc, self)
	must(t, err)
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// openFDs counts this process's descriptors.
func openFDs(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(names)
}

// mknod makes a character device 0:0, which unlike others needs no privilege.
func mknod(name string) error { return unix.Mknod(name, unix.S_IFCHR|0o644, 0) }
