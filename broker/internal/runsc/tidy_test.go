package runsc

import (
	"os"
	"path/filepath"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"golang.org/x/sys/unix"
)

// R32: what runsc keeps below its root goes with the last container, also where
// two were made at once and both have mounted it.
func TestTidyTakesAllMounts(t *testing.T) {
	rootonly.Test(t)
	root := t.TempDir()
	name := filepath.Join(root, "null-netns")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const mounts = 3
	for range mounts {
		if err := unix.Mount("/proc/self/ns/net", name, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for range mounts {
			unix.Unmount(name, unix.MNT_DETACH)
		}
	})
	r := &Runtime{o: Options{Root: root}}
	for range 2 { // it is idempotent
		if err := r.Tidy(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(name); !os.IsNotExist(err) {
		t.Error(err)
	}
}
