package session

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// An agent may nest folders deeper than a process has descriptors, and leave
// links: all of it goes, and nothing else.
func TestRemoveTree(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := limit
	low.Cur = 256
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	outside := filepath.Join(t.TempDir(), "outside")
	top := filepath.Join(t.TempDir(), "top")
	for _, dir := range []string{outside, top} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(outside+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	makeDeep(t, top, 2000, outside)
	for i := range 600 {
		if err := os.WriteFile(filepath.Join(top, "file"+strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := removeTree(top); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(outside + "/file"); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
	if _, err := os.Lstat(top); !os.IsNotExist(err) {
		t.Errorf("the tree is still there: %v", err)
	}
}

func makeDeep(t *testing.T, top string, depth int, link string) {
	t.Helper()
	at, err := unix.Open(top, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for i := 0; i < depth && err == nil; i++ {
		if err = unix.Mkdirat(at, "d", 0o700); err != nil {
			break
		}
		if err = unix.Symlinkat(link, at, "lifted-"+strconv.Itoa(i)); err != nil {
			break
		}
		var next int
		next, err = unix.Openat(at, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(at)
		at = next
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(at)
}
