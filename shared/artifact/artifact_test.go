package artifact

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// R16: what was built verifies, its digest is stable, and no descriptor is left.
func TestBuildAndVerify(t *testing.T) {
	root := newTree(t)
	before := openFDs(t)
	loc := seal(t, root)
	a, err := open(loc, self)
	must(t, err)
	var last, total int64
	must(t, a.VerifyFull(t.Context(), func(d, n int64) { last, total = d, n }))
	if want := int64(len("a program") + len("data")); last != want || total != want {
		t.Errorf("progress ended at %d of %d bytes, want %d", last, total, want)
	}
	must(t, a.VerifyIdentity())
	must(t, a.VerifyFull(t.Context(), nil)) // a listing must not depend on an offset
	must(t, a.Close())
	if again := seal(t, root); again.Digest != loc.Digest {
		t.Errorf("the same tree has digests %s and %s", loc.Digest, again.Digest)
	}
	if after := openFDs(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// R16: each thing that an artifact may not hold is refused with its code when
// it is built, and when it appears later.
func TestRefusals(t *testing.T) {
	cases := []struct {
		name string
		code string
		do   func(root string) error
	}{
		{"device node", CodeForbiddenEntry, func(r string) error { return mknod(r + "/usr/null") }},
		{"device node in dev", CodeForbiddenEntry, func(r string) error { return mknod(r + "/dev/null") }},
		{"file in dev", CodeForbiddenEntry, func(r string) error { return os.WriteFile(r+"/dev/x", nil, 0o644) }},
		{"named pipe", CodeForbiddenEntry, func(r string) error { return unix.Mkfifo(r+"/usr/pipe", 0o644) }},
		{"socket", CodeForbiddenEntry, func(r string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: r + "/usr/s", Net: "unix"})
			if err != nil {
				return err
			}
			l.SetUnlinkOnClose(false)
			return l.Close()
		}},
		{"setuid", CodeForbiddenEntry, func(r string) error { return unix.Chmod(r+"/usr/bin/tool", 0o4755) }},
		{"setgid", CodeForbiddenEntry, func(r string) error { return unix.Chmod(r+"/usr/bin/tool", 0o2755) }},
		{"setgid directory", CodeForbiddenEntry, func(r string) error { return unix.Chmod(r+"/usr", 0o2755) }},
		{"sticky directory", CodeForbiddenEntry, func(r string) error { return unix.Chmod(r+"/empty", 0o1755) }},
		{"world-writable file", CodeForbiddenEntry, func(r string) error { return unix.Chmod(r+"/usr/bin/tool", 0o757) }},
		{"group-writable file", CodeForbiddenEntry, func(r string) error { return unix.Chmod(r+"/usr/bin/tool", 0o775) }},
		{"world-writable directory", CodeForbiddenEntry, func(r string) error { return unix.Chmod(r+"/empty", 0o777) }},
		{"world-writable root", CodeForbiddenEntry, func(r string) error { return unix.Chmod(r, 0o777) }},
		{"hard link within", CodeForbiddenEntry, func(r string) error { return os.Link(r+"/usr/bin/tool", r+"/usr/bin/again") }},
		{"hard link outside", CodeForbiddenEntry, func(r string) error { return os.Link(r+"/usr/bin/tool", r+"/../outside") }},
		{"dev is a symlink", CodeForbiddenEntry, func(r string) error { return swapForSymlink(r+"/dev", "/dev") }},
		{"proc is a symlink", CodeForbiddenEntry, func(r string) error { return swapForSymlink(r+"/proc", "usr") }},
		{"sys is a file", CodeForbiddenEntry, func(r string) error {
			if err := os.Remove(r + "/sys"); err != nil {
				return err
			}
			return os.WriteFile(r+"/sys", nil, 0o644)
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			root := newTree(t)
			a := openSelf(t, seal(t, root))
			must(t, c.do(root))
			before := openFDs(t)
			_, err := build(t.Context(), root, self)
			wantCode(t, err, c.code)
			wantCode(t, a.VerifyFull(t.Context(), nil), c.code)
			if after := openFDs(t); after != before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
		})
	}
}

func swapForSymlink(name, target string) error {
	if err := os.Remove(name); err != nil {
		return err
	}
	return os.Symlink(target, name)
}

// R16: an owner other than the wanted one is refused, in the tree and above it.
func TestOwner(t *testing.T) {
	root := newTree(t)
	loc := seal(t, root)
	other := owner{self.uid + 1, self.gid + 1}
	_, err := build(t.Context(), root, other)
	wantCode(t, err, CodeNotRootOwned)
	_, err = open(loc, other)
	wantCode(t, err, CodeNotRootOwned)

	base := filepath.Dir(root)
	must(t, checkPlace(base, self))
	must(t, os.Chmod(base, 0o777)) // anyone could now rename the tree
	_, err = open(loc, self)
	wantCode(t, err, CodeNotRootOwned)
	wantCode(t, checkPlace(base, self), CodeNotRootOwned)
}

// R16: the full check finds every kind of change, however small.
func TestVerifyFullFindsChanges(t *testing.T) {
	cases := []struct {
		name, says string
		do         func(root string) error
	}{
		{"one byte", "another content", func(r string) error { return os.WriteFile(r+"/usr/bin/tool", []byte("a progrbm"), 0) }},
		{"longer", "another content, size", func(r string) error { return os.WriteFile(r+"/usr/bin/tool", []byte("a program!"), 0) }},
		{"mode", "another mode", func(r string) error { return os.Chmod(r+"/usr/bin/tool", 0o555) }},
		{"new file", "not in the manifest", func(r string) error { return os.WriteFile(r+"/usr/new", nil, 0o644) }},
		{"new last file", "not in the manifest", func(r string) error { return os.WriteFile(r+"/zzz", nil, 0o644) }},
		{"lost file", "is missing", func(r string) error { return os.Remove(r + "/usr/bin/tool") }},
		{"other target", "another target", func(r string) error {
			if err := os.Remove(r + "/bin"); err != nil {
				return err
			}
			return os.Symlink("usr/evil", r+"/bin")
		}},
		{"file for symlink", "another content, mode, size, target, type", func(r string) error {
			if err := os.Remove(r + "/bin"); err != nil {
				return err
			}
			return os.WriteFile(r+"/bin", []byte("x"), 0o644)
		}},
		{"swapped file", "another content", func(r string) error {
			if err := os.WriteFile(r+"/../other", []byte("malicious"), 0o755); err != nil {
				return err
			}
			return os.Rename(r+"/../other", r+"/usr/bin/tool")
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			root := newTree(t)
			a := openSelf(t, seal(t, root))
			must(t, c.do(root))
			err := a.VerifyFull(t.Context(), nil)
			wantCode(t, err, CodeDigestMismatch)
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %q, want it to say %q", err, c.says)
			}
		})
	}
}

// R16: the cheap check notices another inode, mode, entry or place.
func TestVerifyIdentityFindsChanges(t *testing.T) {
	cases := []struct {
		name, code string
		do         func(root string) error
	}{
		{"tree replaced", CodeIdentityChanged, func(r string) error {
			if err := os.Rename(r, r+".old"); err != nil {
				return err
			}
			return exec.Command("cp", "-a", r+".old", r).Run()
		}},
		{"tree gone", CodeMissing, func(r string) error { return os.Rename(r, r+".old") }},
		{"tree is a symlink", CodeForbiddenEntry, func(r string) error {
			if err := os.Rename(r, r+".old"); err != nil {
				return err
			}
			return os.Symlink(r+".old", r)
		}},
		{"parent is a symlink", CodeForbiddenEntry, func(r string) error {
			dir := filepath.Dir(r)
			if err := os.Rename(dir, dir+".old"); err != nil {
				return err
			}
			return os.Symlink(dir+".old", dir)
		}},
		{"parent writable", CodeNotRootOwned, func(r string) error { return os.Chmod(filepath.Dir(r), 0o777) }},
		{"root writable", CodeIdentityChanged, func(r string) error { return os.Chmod(r, 0o777) }},
		{"top-level mode", CodeIdentityChanged, func(r string) error { return os.Chmod(r+"/usr", 0o777) }},
		{"top-level swap", CodeIdentityChanged, func(r string) error { return swapForSymlink(r+"/dev", "/dev") }},
		{"mount point made", CodeIdentityChanged, func(r string) error { return os.Mkdir(r+"/made-by-runtime", 0o755) }},
		{"entry removed", CodeIdentityChanged, func(r string) error { return os.Remove(r + "/dangling") }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			root := newTree(t)
			a := openSelf(t, seal(t, root))
			must(t, a.VerifyIdentity())
			must(t, c.do(root))
			wantCode(t, a.VerifyIdentity(), c.code)
		})
	}
}

// R16: Open itself refuses what it can see without reading files.
func TestOpenRefuses(t *testing.T) {
	cases := []struct {
		name, code string
		do         func(t *testing.T, loc *Location)
	}{
		{"wrong digest", CodeDigestMismatch, func(t *testing.T, l *Location) { l.Digest = "sha256:" + strings.Repeat("0", 64) }},
		{"no digest", CodeDigestMismatch, func(t *testing.T, l *Location) { l.Digest = "" }},
		{"no manifest", CodeMissing, func(t *testing.T, l *Location) { must(t, os.Remove(l.Manifest)) }},
		{"no tree", CodeMissing, func(t *testing.T, l *Location) { must(t, os.RemoveAll(l.Path)) }},
		{"relative path", CodeMissing, func(t *testing.T, l *Location) { l.Path = "tree" }},
		{"unclean path", CodeMissing, func(t *testing.T, l *Location) { l.Path += "/../tree" }},
		{"manifest writable", CodeNotRootOwned, func(t *testing.T, l *Location) { must(t, os.Chmod(l.Manifest, 0o666)) }},
		{"manifest edited", CodeDigestMismatch, func(t *testing.T, l *Location) {
			data, err := os.ReadFile(l.Manifest)
			must(t, err)
			must(t, os.WriteFile(l.Manifest, []byte(strings.Replace(string(data), " 9 ", " 8 ", 1)), 0o644))
		}},
		{"manifest is a pipe", CodeForbiddenEntry, func(t *testing.T, l *Location) {
			must(t, os.Remove(l.Manifest))
			must(t, unix.Mkfifo(l.Manifest, 0o644))
		}},
		{"manifest is a symlink", CodeForbiddenEntry, func(t *testing.T, l *Location) {
			must(t, os.Rename(l.Manifest, l.Manifest+".real"))
			must(t, os.Symlink(l.Manifest+".real", l.Manifest))
		}},
		{"manifest is a directory", CodeForbiddenEntry, func(t *testing.T, l *Location) {
			must(t, os.Remove(l.Manifest))
			must(t, os.Mkdir(l.Manifest, 0o755))
		}},
		{"extra top-level entry", CodeDigestMismatch, func(t *testing.T, l *Location) { must(t, os.Mkdir(l.Path+"/x", 0o755)) }},
		{"missing top-level entry", CodeDigestMismatch, func(t *testing.T, l *Location) { must(t, os.Remove(l.Path+"/bin")) }},
		{"top-level mode", CodeDigestMismatch, func(t *testing.T, l *Location) { must(t, os.Chmod(l.Path+"/usr", 0o777)) }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			loc := seal(t, newTree(t))
			c.do(t, &loc)
			before := openFDs(t)
			_, err := open(loc, self)
			wantCode(t, err, c.code)
			if after := openFDs(t); after != before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
		})
	}
}

// A cancelled check says so, and neither blocks nor leaves descriptors.
func TestVerifyFullCancelled(t *testing.T) {
	a := openSelf(t, seal(t, newTree(t)))
	before := openFDs(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantCode(t, a.VerifyFull(ctx, nil), CodeCancelled)
	if after := openFDs(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
