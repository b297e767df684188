package index

import (
	"os"
	"path/filepath"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
	"golang.org/x/sys/unix"
)

// open opens a file of the test's folder.
func open(t testing.TB, dir string) *custody.File {
	t.Helper()
	fd, err := unix.Open(filepath.Join(dir, "index"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f := custody.NewFile(fd, "index")
	t.Cleanup(func() { f.Close() })
	return f
}

func write(t testing.TB, dir string, b []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "index"), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, dir string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "index"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// memory makes a file without a disk, so that a fuzzer gets anywhere.
func memory(t testing.TB, content []byte) *custody.File {
	t.Helper()
	fd, err := unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := custody.NewFile(fd, "memory")
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	return f
}
