package recipe

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"git.jb.codes/jb/paseo-sandbox/installer/internal/setup"
)

// epoch is the modification time of everything in a rootfs.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const maxNodeBytes = 512 << 20

// tree is a folder under construction. It knows directories, files and
// symlinks only; each file is a copy of its own, so that hard links end here;
// modes are 0755 or 0644. The first error stays in err and stops the rest.
type tree struct {
	ctx  context.Context
	root string
	dirs []string
	err  error
}

func (t *tree) try(f func() error) {
	if t.err == nil {
		t.err = f()
	}
}

func (t *tree) path(name string) string { return filepath.Join(t.root, name) }

func (t *tree) mkdir(name string) {
	t.try(func() error { return os.Mkdir(t.path(name), 0o755) })
	t.dirs = append(t.dirs, name)
}

// mkdirAll makes what is missing on the way. A symlink there is an error.
func (t *tree) mkdirAll(name string) {
	if name == "." {
		return
	}
	t.mkdirAll(filepath.Dir(name))
	t.try(func() error {
		st, err := os.Lstat(t.path(name))
		if os.IsNotExist(err) {
			t.mkdir(name)
			return t.err
		}
		if err == nil && !st.IsDir() {
			return fmt.Errorf("%s is not a directory", name)
		}
		return err
	})
}

func (t *tree) write(name, content string) {
	t.try(func() error { return os.WriteFile(t.path(name), []byte(content), 0o644) })
	t.try(func() error { return os.Chtimes(t.path(name), epoch, epoch) })
}

func (t *tree) symlink(target, name string) {
	t.try(func() error { return os.Symlink(target, t.path(name)) })
}

func (t *tree) copyFile(from, name string, executable bool) {
	t.try(func() error {
		src, err := os.Open(from)
		if err != nil {
			return err
		}
		defer src.Close()
		return writeNew(t.path(name), src, executable)
	})
	t.try(func() error { return os.Chtimes(t.path(name), epoch, epoch) })
}

// copyTree copies what keep wants of a folder to the name to. What is neither
// directory, file nor symlink is an error unless keep leaves it out.
func (t *tree) copyTree(from, to string, keep func(string) bool) {
	t.mkdirAll(to)
	t.try(func() error {
		return filepath.WalkDir(from, func(full string, d fs.DirEntry, err error) error {
			if err == nil {
				err = t.ctx.Err()
			}
			if err != nil || full == from {
				return err
			}
			rel, err := filepath.Rel(from, full)
			if err != nil {
				return err
			}
			if !keep(rel) {
				if d.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			t.copyEntry(full, filepath.Join(to, rel), d)
			return t.err
		})
	})
}

func (t *tree) copyEntry(full, name string, d fs.DirEntry) {
	switch d.Type() {
	case fs.ModeDir:
		t.mkdir(name)
	case fs.ModeSymlink:
		target, err := os.Readlink(full)
		t.try(func() error { return err })
		t.symlink(target, name)
	case 0:
		st, err := d.Info()
		t.try(func() error { return err })
		if err == nil {
			t.copyFile(full, name, st.Mode()&0o111 != 0)
		}
	default:
		t.try(func() error { return fmt.Errorf("%s is neither a directory, a file nor a symlink", name) })
	}
}

// mustExecute makes sure that a program the sandbox needs is there.
func (t *tree) mustExecute(name string) {
	t.try(func() error {
		full, err := filepath.EvalSymlinks(t.path(name))
		if err != nil {
			return err
		}
		if st, err := os.Stat(full); err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
			return fmt.Errorf("%s is not an executable file", name)
		}
		return nil
	})
}

// settle dates the directories, which every entry made in them has touched.
func (t *tree) settle() {
	for _, name := range t.dirs {
		t.try(func() error { return os.Chtimes(t.path(name), epoch, epoch) })
	}
}

func writeNew(name string, src io.Reader, executable bool) error {
	mode := os.FileMode(0o644)
	if executable {
		mode = 0o755
	}
	dst, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(dst, src); err != nil {
		_ = dst.Close()
		return err
	}
	return dst.Close()
}

// checkIntegrity holds a file to a digest as npm writes it.
func checkIntegrity(name, want string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha512.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := "sha512-" + base64.StdEncoding.EncodeToString(h.Sum(nil)); got != want {
		return setup.Errorf(setup.CodeDownload, nil, "Do not use it. Compare with the registry, then correct the pin.",
			"%s has integrity %s, and %s is pinned", filepath.Base(name), got, want)
	}
	return nil
}

// extractOne takes one executable out of a gzipped tar.
func extractOne(tarball, member, to string) error {
	f, err := os.Open(tarball)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if err == io.EOF {
			return fmt.Errorf("it holds no %s", member)
		}
		if err != nil {
			return err
		}
		if h.Name == member && h.Typeflag == tar.TypeReg && h.Size <= maxNodeBytes {
			return writeNew(to, t, true)
		}
	}
}
