package workspace

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// host is a folder of the test's own with a workspace, and a folder of pins.
type host struct {
	base, root, pins string
}

func newHost(t *testing.T) host {
	t.Helper()
	rootonly.Test(t)
	base := t.TempDir()
	// A private mount, so that no mount of a test reaches the machine's.
	must(t, unix.Mount(base, base, "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unmount(base)) })
	must(t, unix.Mount("", base, "", unix.MS_PRIVATE, ""))
	h := host{base: base, root: filepath.Join(base, "a", "b", "work"), pins: filepath.Join(base, "pins")}
	must(t, os.MkdirAll(h.root, 0o755))
	must(t, os.Mkdir(h.pins, 0o700))
	must(t, os.WriteFile(filepath.Join(h.root, "mine"), nil, 0o644))
	must(t, PreparePinRoot(h.pins))
	t.Cleanup(func() {
		pins, err := Pins(h.base)
		if err != nil {
			t.Error(err)
		}
		for _, p := range pins {
			if err := unmount(p); err != nil {
				t.Error(err)
			}
		}
	})
	return h
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pin resolves and pins, under a name of its own.
func (h host) pin(name string, readOnly bool) (string, error) {
	d, err := Open(h.root)
	if err != nil {
		return "", err
	}
	defer d.Close()
	return h.pinDir(d, name, readOnly)
}

func (h host) pinDir(d *Dir, name string, readOnly bool) (string, error) {
	target := filepath.Join(h.pins, name)
	if err := os.Mkdir(target, 0o700); err != nil {
		return target, err
	}
	if err := d.Pin(target, readOnly); err != nil {
		return target, errors.Join(err, os.Remove(target))
	}
	return target, nil
}

// bothKernels runs a test with mount_setattr(2) and as on Linux before 5.12.
func bothKernels(t *testing.T, test func(*testing.T)) {
	t.Run("mount_setattr", test)
	t.Run("before 5.12", func(t *testing.T) {
		mountSetattr = func(int, string, uint, *unix.MountAttr) error { return unix.ENOSYS }
		defer func() { mountSetattr = unix.MountSetattr }()
		test(t)
	})
}

// R13: a pin shows the folder that was resolved, whatever becomes of its path.
func TestPinSurvivesWhatHappensToThePath(t *testing.T) {
	bothKernels(t, func(t *testing.T) {
		for name, change := range map[string]func(host) error{
			"renamed":          func(h host) error { return os.Rename(h.root, h.base+"/elsewhere") },
			"ancestor renamed": func(h host) error { return os.Rename(h.base+"/a", h.base+"/z") },
			"replaced by a link": func(h host) error {
				return errors.Join(os.Rename(h.root, h.base+"/old"), os.Symlink("/etc", h.root))
			},
			"replaced by a folder": func(h host) error {
				return errors.Join(os.Rename(h.root, h.base+"/old"), os.Mkdir(h.root, 0o755))
			},
			"covered by a mount": func(h host) error { return unix.Mount("tmpfs", h.root, "tmpfs", 0, "size=1m") },
		} {
			t.Run(name, func(t *testing.T) {
				h := newHost(t)
				target, err := h.pin("one", false)
				must(t, err)
				must(t, change(h))
				if _, err := os.Stat(filepath.Join(target, "mine")); err != nil {
					t.Errorf("the pin shows something else: %v", err)
				}
				must(t, Unpin(target))
				must(t, Unpin(target))
			})
		}
	})
}

// R13 R14: mounts on the host beneath the workspace are refused when they are
// there, and never appear when they come later, of whatever propagation.
func TestMountsBeneath(t *testing.T) {
	bothKernels(t, func(t *testing.T) {
		h := newHost(t)
		sub := filepath.Join(h.root, "sub")
		must(t, os.Mkdir(sub, 0o755))
		must(t, unix.Mount("tmpfs", sub, "tmpfs", 0, "size=1m"))
		if _, err := h.pin("refused", false); wire.CodeOf(err) != wire.CodeWorkspaceHasMounts {
			t.Errorf("with a mount beneath: %v", err)
		}
		must(t, unix.Unmount(sub, 0))
		for name, propagation := range map[string]uintptr{"shared": unix.MS_SHARED, "private": unix.MS_PRIVATE, "slave": unix.MS_SLAVE} {
			t.Run(name, func(t *testing.T) {
				h := newHost(t)
				// The workspace on a mount of its own, which is shared.
				must(t, unix.Mount(h.root, h.root, "", unix.MS_BIND, ""))
				must(t, unix.Mount("", h.root, "", propagation, ""))
				sub := filepath.Join(h.root, "sub")
				must(t, os.Mkdir(sub, 0o755))
				target, err := h.pin("one", false)
				must(t, err)
				must(t, unix.Mount("tmpfs", sub, "tmpfs", 0, "size=1m"))
				must(t, os.WriteFile(filepath.Join(sub, "later"), nil, 0o644))
				if _, err := os.Stat(filepath.Join(target, "sub", "later")); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the later mount is seen through the pin: %v", err)
				}
				must(t, Unpin(target))
			})
		}
	})
}

// R15: pins are nosuid and nodev, and read-only where it is registered.
func TestPinFlags(t *testing.T) {
	bothKernels(t, func(t *testing.T) {
		for _, readOnly := range []bool{false, true} {
			h := newHost(t)
			target, err := h.pin("one", readOnly)
			must(t, err)
			var st unix.Statfs_t
			must(t, unix.Statfs(target, &st))
			if st.Flags&unix.MS_NOSUID == 0 || st.Flags&unix.MS_NODEV == 0 {
				t.Errorf("flags %#x", st.Flags)
			}
			err = os.WriteFile(filepath.Join(target, "new"), nil, 0o644)
			if readOnly != errors.Is(err, unix.EROFS) {
				t.Errorf("read-only %v: %v", readOnly, err)
			}
		}
	})
}

// R13 R16: the pin of a tree shows the folder that was opened, whatever its
// path leads to by then; it is read-only, nosuid, nodev and private, and takes
// the place of what was pinned there before.
func TestPinTree(t *testing.T) {
	bothKernels(t, func(t *testing.T) {
		h := newHost(t)
		target := filepath.Join(h.pins, "rootfs")
		open := func() int {
			fd, err := unix.Open(h.root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			must(t, err)
			t.Cleanup(func() { unix.Close(fd) })
			return fd
		}
		first := open()
		must(t, errors.Join(os.Rename(h.root, h.base+"/old"), os.Mkdir(h.root, 0o755), os.WriteFile(h.root+"/other", nil, 0o644)))
		must(t, PinTree(first, h.root, target))
		if _, err := os.Stat(filepath.Join(target, "mine")); err != nil {
			t.Errorf("the pin shows something else: %v", err)
		}
		var st unix.Statfs_t
		must(t, unix.Statfs(target, &st))
		const want = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
		if st.Flags&want != want {
			t.Errorf("flags %#x, want at least %#x", st.Flags, want)
		}
		if m, err := mountAt(target); err != nil || m == nil || !m.private {
			t.Errorf("the mount is %+v, %v", m, err)
		}
		must(t, PinTree(open(), h.root, target))
		if _, err := os.Stat(filepath.Join(target, "other")); err != nil {
			t.Errorf("the second pin shows something else: %v", err)
		}
		if pins, err := Pins(h.pins); err != nil || len(pins) != 1 {
			t.Errorf("the pins are %q, %v", pins, err)
		}
		must(t, unix.Mount("tmpfs", h.root, "tmpfs", 0, "size=1m"))
		if _, err := os.Stat(filepath.Join(target, "other")); err != nil {
			t.Errorf("a mount on the path reaches the pin: %v", err)
		}
		must(t, Unpin(target))
	})
}

// R14: a tree with a mount in it, or one that was removed, is not pinned, and
// nothing stays.
func TestPinTreeRefuses(t *testing.T) {
	h := newHost(t)
	target := filepath.Join(h.pins, "rootfs")
	must(t, os.Mkdir(h.root+"/proc", 0o755))
	must(t, unix.Mount("tmpfs", h.root+"/proc", "tmpfs", 0, "size=1m"))
	fd, err := unix.Open(h.root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	if err := PinTree(fd, h.root, target); wire.CodeOf(err) != wire.CodeWorkspaceHasMounts {
		t.Errorf("with a mount in it: %v", err)
	}
	must(t, unix.Unmount(h.root+"/proc", 0))
	must(t, os.RemoveAll(h.root))
	if err := PinTree(fd, h.root, target); wire.CodeOf(err) != wire.CodePathMissing {
		t.Errorf("removed: %v", err)
	}
	if pins, err := Pins(h.pins); err != nil || len(pins) != 0 {
		t.Errorf("left: %q, %v", pins, err)
	}
	must(t, Unpin(target))
}

// R15: a pin loosens nothing: a workspace on a read-only or noexec mount stays so.
func TestPinKeepsTheFlagsOfTheMount(t *testing.T) {
	bothKernels(t, func(t *testing.T) {
		h := newHost(t)
		must(t, unix.Mount(h.root, h.root, "", unix.MS_BIND, ""))
		must(t, unix.Mount("", h.root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOEXEC, ""))
		target, err := h.pin("one", false)
		must(t, err)
		var st unix.Statfs_t
		must(t, unix.Statfs(target, &st))
		const want = unix.MS_RDONLY | unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV
		if st.Flags&want != want {
			t.Errorf("flags %#x, want at least %#x", st.Flags, want)
		}
	})
}

// A removed workspace is refused, and the folder of pins can be made and
// released over and over.
func TestRemovedAndIdempotent(t *testing.T) {
	h := newHost(t)
	d, err := Open(h.root)
	must(t, err)
	defer d.Close()
	must(t, os.RemoveAll(h.root))
	target := filepath.Join(h.pins, "one")
	must(t, os.Mkdir(target, 0o700))
	if err := d.Pin(target, false); wire.CodeOf(err) != wire.CodePathMissing {
		t.Errorf("a removed folder: %v", err)
	}
	must(t, PreparePinRoot(h.pins))
	if pins, err := Pins(h.pins); err != nil || len(pins) != 0 {
		t.Errorf("%v, %v", pins, err)
	}
	must(t, ReleasePinRoot(h.pins))
	must(t, ReleasePinRoot(h.pins))
}
