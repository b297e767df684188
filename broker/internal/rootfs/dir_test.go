package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// R16: what a folder may not hold is refused by default; with normalization it
// is mended and counted. A mount in it is always refused.
func TestForbiddenInFolders(t *testing.T) {
	rootonly.Test(t)
	for name, c := range map[string]struct {
		class Class
		do    func(root string) error
	}{
		"owner":           {ClassOwner, func(r string) error { return os.Lchown(r+"/a", 1000, 1000) }},
		"symlink's owner": {ClassOwner, func(r string) error { return os.Lchown(r+"/link", 1000, 1000) }},
		"setuid":          {ClassSetuid, func(r string) error { return unix.Chmod(r+"/a", 0o4755) }},
		"setgid folder":   {ClassSetgid, func(r string) error { return unix.Chmod(r+"/usr", 0o2755) }},
		"sticky":          {ClassSticky, func(r string) error { return unix.Chmod(r+"/usr", 0o1755) }},
		"writable":        {ClassWritable, func(r string) error { return unix.Chmod(r, 0o775) }},
		"capabilities": {ClassCapabilities, func(r string) error {
			return unix.Setxattr(r+"/a", capabilities, []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0)
		}},
		"attributes":    {ClassAttributes, func(r string) error { return unix.Setxattr(r+"/usr", "trusted.x", []byte("x"), 0) }},
		"hard link":     {ClassHardLink, func(r string) error { return os.Link(r+"/a", r+"/../outside") }},
		"device":        {ClassDevice, func(r string) error { return unix.Mknod(r+"/null", unix.S_IFCHR|0o644, 0) }},
		"pipe":          {ClassPipe, func(r string) error { return unix.Mkfifo(r+"/pipe", 0o644) }},
		"below dev":     {ClassDev, func(r string) error { return os.MkdirAll(r+"/dev/shm", 0o755) }},
		"dev is a link": {ClassPlace, func(r string) error { return os.Symlink("/dev", r+"/dev") }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			root := filepath.Join(t.TempDir(), "source")
			must(t, errors.Join(os.MkdirAll(root+"/usr", 0o755), os.WriteFile(root+"/a", []byte("x"), 0o755), os.Symlink("a", root+"/link")))
			must(t, c.do(root))
			fds := openFDs(t)
			_, err := s.ImportDir(t.Context(), root, Options{})
			wantCode(t, err, CodeForbidden)
			wantEmpty(t, s)
			r, err := s.ImportDir(t.Context(), root, Options{Normalize: true})
			must(t, err)
			must(t, s.Verify(t.Context(), r.Digest, nil))
			if len(r.Changes) != 1 || r.Changes[0].Class != c.class || r.Changes[0].Count != 1 {
				t.Errorf("the changes are %+v", r.Changes)
			}
			if after := openFDs(t); after != fds {
				t.Errorf("%d descriptors before, %d after", fds, after)
			}
		})
	}
}

// R14 R16: mounts in a folder, also those of the same file system, and a store
// within its own source are refused.
func TestFoldersThatAreRefused(t *testing.T) {
	s := newStore(t)
	root := t.TempDir()
	sub := root + "/sub"
	must(t, os.Mkdir(sub, 0o755))
	for name, mount := range map[string]func() error{
		"bind":  func() error { return unix.Mount("/etc", sub, "", unix.MS_BIND, "") },
		"tmpfs": func() error { return unix.Mount("tmpfs", sub, "tmpfs", 0, "size=1m") },
	} {
		must(t, mount())
		_, err := s.ImportDir(t.Context(), root, Options{Normalize: true})
		must(t, unix.Unmount(sub, 0))
		if err == nil {
			t.Fatal(name)
		}
		wantCode(t, err, CodeForbidden)
	}
	_, err := s.ImportDir(t.Context(), filepath.Dir(s.layout.Var), Options{Normalize: true})
	wantCode(t, err, CodeForbidden)
	_, err = s.ImportDir(t.Context(), root+"/none", Options{})
	wantCode(t, err, CodeFailed)
	wantEmpty(t, s)
}

// R16: a folder that changes while it is read is refused, or what is stored is
// what its manifest says; never a file from outside of it.
func TestFolderThatChanges(t *testing.T) {
	s := newStore(t)
	s.flush = noFlush
	base := tempDir(t)
	root, secret := base+"/source", base+"/secret"
	must(t, errors.Join(os.MkdirAll(root+"/d/e", 0o755), os.MkdirAll(secret+"/e", 0o755), os.WriteFile(secret+"/e/f", []byte("secret"), 0o644)))
	for i := range 200 {
		must(t, os.WriteFile(fmt.Sprintf("%s/d/e/f%d", root, i), bytes.Repeat([]byte("x"), 1000), 0o644))
	}
	must(t, os.WriteFile(root+"/d/e/f", bytes.Repeat([]byte("y"), 100_000), 0o644))
	must(t, os.Symlink(secret, base+"/evil"))
	stop := make(chan struct{})
	var racers sync.WaitGroup
	defer racers.Wait()
	defer close(stop)
	for _, change := range []func(i int) error{
		func(int) error {
			return unix.Renameat2(unix.AT_FDCWD, root+"/d", unix.AT_FDCWD, base+"/evil", unix.RENAME_EXCHANGE)
		},
		func(i int) error {
			err := os.WriteFile(root+"/d/e/f", bytes.Repeat([]byte("z"), 100_000+i%2), 0o644)
			if errors.Is(err, os.ErrNotExist) {
				err = nil // the other racer's symlink leads to the secret
			}
			return err
		},
	} {
		racers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					if err := change(i); err != nil {
						t.Errorf("the racer stumbled: %v", err)
						return
					}
				}
			}
		})
	}
	outcomes := map[string]int{}
	for range 60 {
		r, err := s.ImportDir(t.Context(), root, Options{})
		if err != nil {
			wantCode(t, err, CodeSourceChanged)
			outcomes["refused"]++
			continue
		}
		outcomes["imported"]++
		must(t, s.Verify(t.Context(), r.Digest, nil))
		// It may hold the symlink, which is followed by nobody but a test.
		if st, err := os.Lstat(s.tree(r, "d")); err == nil && st.Mode()&fs.ModeSymlink != 0 {
			continue
		}
		if b, err := os.ReadFile(s.tree(r, "d/e/f")); err == nil && bytes.Contains(b, []byte("secret")) {
			t.Fatal("a file from outside of the folder was imported")
		}
	}
	t.Logf("%v", outcomes)
}

// tree is a folder to be: each name with its entry.
type tree map[string]entry

// drawTree draws an allowed tree.
func drawTree(t *rapid.T) tree {
	all := tree{}
	dirs := []string{"."}
	name := rapid.StringMatching(`[a-zA-Z0-9 ._%\x01-\x08é-]{1,12}`)
	for range rapid.IntRange(0, 25).Draw(t, "entries") {
		full := path.Join(rapid.SampledFrom(dirs).Draw(t, "parent"), name.Draw(t, "name"))
		if _, taken := all[full]; taken || path.Base(full) == "." || path.Base(full) == ".." || full == "." || full[0] == '.' && (full == ".." || full[:2] == "./") {
			continue
		}
		if mustBeFolders[full] || path.Dir(full) == "dev" {
			continue
		}
		switch rapid.IntRange(0, 2).Draw(t, "kind") {
		case 0:
			all[full] = dir(full).mode(rapid.SampledFrom([]int64{0o755, 0o700, 0o555, 0o500}).Draw(t, "mode"))
			dirs = append(dirs, full)
		case 1:
			all[full] = file(full, rapid.String().Draw(t, "content")).mode(rapid.SampledFrom([]int64{0o644, 0o755, 0o400, 0}).Draw(t, "mode"))
		case 2:
			all[full] = symlink(full, rapid.StringMatching(`[a-z/. ]{1,20}`).Draw(t, "target"))
		}
	}
	return all
}

func (tr tree) names() []string { return slices.Sorted(maps.Keys(tr)) }

// make writes the tree below root.
func (tr tree) make(root string) error {
	for _, name := range tr.names() {
		e, p := tr[name], filepath.Join(root, name)
		var err error
		switch e.Typeflag {
		case tar.TypeDir:
			err = errors.Join(os.Mkdir(p, 0o700), os.Chmod(p, os.FileMode(e.Mode)))
		case tar.TypeSymlink:
			err = os.Symlink(e.Linkname, p)
		default:
			err = errors.Join(os.WriteFile(p, []byte(e.body), 0o600), os.Chmod(p, os.FileMode(e.Mode)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// R16: a tree has one digest, whichever way it comes: as a folder, as an
// archive of archive/tar, as one of GNU tar in either of its formats.
func TestOneDigest(t *testing.T) {
	s := newStore(t)
	s.flush = noFlush
	base := tempDir(t)
	rapid.Check(t, func(rt *rapid.T) {
		all := drawTree(rt)
		root, err := os.MkdirTemp(base, "source-")
		must(t, err)
		defer os.RemoveAll(root)
		must(t, errors.Join(os.Chmod(root, 0o755), all.make(root)))
		fromDir, err := s.ImportDir(context.Background(), root, Options{})
		if err != nil {
			rt.Fatal(err)
		}
		entries := []entry{}
		for _, name := range all.names() {
			entries = append(entries, all[name])
		}
		archives := map[string][]byte{"archive/tar": archive(t, entries...)}
		for _, format := range []string{"gnu", "pax"} {
			archives[format], err = exec.Command("tar", "-C", root, "--format", format, "-c", ".").Output()
			must(t, err)
		}
		for name, b := range archives {
			r, err := s.ImportTar(context.Background(), bytes.NewReader(b), Options{Digest: fromDir.Digest})
			if err != nil {
				rt.Fatalf("%s: %v", name, err)
			}
			if !r.AlreadyPresent || r.Entries != fromDir.Entries || r.Bytes != fromDir.Bytes {
				rt.Errorf("%s: %+v, from the folder %+v", name, r, fromDir)
			}
		}
	})
}
