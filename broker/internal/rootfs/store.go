package rootfs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/trusted"
	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// scheme begins a digest; the rest is the name of its folder.
const scheme = "sha256:"

// Store is the folder of imported root file systems. Its methods may be called
// at the same time, also by several processes.
type Store struct {
	layout layout.Layout
	dir    string
	limits limits
	flush  func(fd int) error // brings a file system to the disk
}

// At returns the store of a layout. It touches nothing.
func At(l layout.Layout) *Store {
	return &Store{layout: l, dir: filepath.Clean(l.Rootfs("")), limits: defaults, flush: unix.Syncfs}
}

// Location returns where an imported root file system is, or would be.
func (s *Store) Location(digest string) artifact.Location {
	dir := s.layout.Rootfs(strings.TrimPrefix(digest, scheme))
	return artifact.Location{Path: dir + "/tree", Manifest: dir + "/manifest", Digest: digest}
}

// Rootfs is an imported root file system.
type Rootfs struct {
	Digest   string    `json:"digest"`
	Entries  int       `json:"entries"`
	Bytes    int64     `json:"bytes"`
	Imported time.Time `json:"imported"`
	// Err says why it can't be used, as far as that is seen without reading it.
	Err error `json:"-"`
}

// List returns what was imported, the oldest first, and removes what crashed
// imports and removals have left.
func (s *Store) List() ([]Rootfs, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return []Rootfs{}, nil
	}
	if err == nil {
		err = s.sweep()
	}
	if err != nil {
		return nil, ioFail(err, "the store %q can't be read", s.dir)
	}
	all := []Rootfs{}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && isHex(e.Name()) {
			all = append(all, s.describe(e.Name(), info.ModTime()))
		}
	}
	slices.SortFunc(all, func(a, b Rootfs) int { return a.Imported.Compare(b.Imported) })
	return all, nil
}

func (s *Store) describe(hex string, imported time.Time) Rootfs {
	r := Rootfs{Digest: scheme + hex, Imported: imported.UTC().Truncate(time.Second)}
	a, err := artifact.Open(s.Location(r.Digest))
	if err != nil {
		r.Err = ioFail(err, "it can't be opened")
		return r
	}
	defer a.Close()
	r.Entries, r.Bytes = len(a.Manifest.Entries), a.Manifest.Bytes()
	return r
}

// Find completes the beginning of a digest, with or without "sha256:". Error:
// CodeRootfsMissing, of package wire, when not exactly one begins so.
func (s *Store) Find(prefix string) (string, error) {
	all, err := s.List()
	if err != nil {
		return "", err
	}
	hex := strings.TrimPrefix(prefix, scheme)
	var found []string
	for _, r := range all {
		if hex != "" && strings.HasPrefix(r.Digest, scheme+hex) {
			found = append(found, r.Digest)
		}
	}
	if len(found) != 1 {
		return "", fail(wire.CodeRootfsMissing, nil, "%d imported root file systems have a digest that begins with %.80q", len(found), prefix)
	}
	return found[0], nil
}

// Verify reads an imported root file system in full (R16). Progress, which may
// be nil, gets the bytes read and in all. Errors have the codes of package
// artifact.
func (s *Store) Verify(ctx context.Context, digest string, progress func(done, total int64)) error {
	a, err := artifact.Open(s.Location(digest))
	if err == nil {
		err = errors.Join(a.VerifyFull(ctx, progress), a.Close())
	}
	if err != nil {
		return ioFail(err, "%s can't be verified", digest)
	}
	return nil
}

// Remove removes an imported root file system, unless something is mounted
// from it: a broker that runs has pinned its own, and each sandbox its root.
// Error: CodeInUse.
func (s *Store) Remove(digest string) error {
	hex := strings.TrimPrefix(digest, scheme)
	if err := s.unused(hex, hex); err != nil {
		return err
	}
	w, err := s.newWork(".remove-")
	if err != nil {
		return err
	}
	defer w.close()
	moved := filepath.Join(w.path, hex)
	if err := os.Rename(filepath.Join(s.dir, hex), moved); err != nil {
		return ioFail(err, "%s can't be removed", digest)
	}
	// A broker may have pinned it between the look and the renaming; from now
	// on none finds it.
	if err := s.unused(hex, filepath.Join(filepath.Base(w.path), hex)); err != nil {
		return errors.Join(err, os.Rename(moved, filepath.Join(s.dir, hex)))
	}
	if err := w.remove(); err != nil {
		return ioFail(err, "what is left of %s can't be removed", digest)
	}
	return syncDir(s.dir)
}

// prepare makes the store's folder, and removes what crashes have left.
func (s *Store) prepare() error {
	if os.Geteuid() != 0 {
		return &wire.Error{Code: wire.CodeRootRequired, Message: "this is not root", Advice: "run it with sudo"}
	}
	for _, dir := range []string{s.layout.Var, s.dir} {
		if err := trusted.MakeDir(dir, 0o700); err != nil {
			return err
		}
	}
	if err := s.sweep(); err != nil {
		return ioFail(err, "the store %q can't be read", s.dir)
	}
	return nil
}

func isHex(name string) bool { return len(name) == 64 && strings.Trim(name, "0123456789abcdef") == "" }

// syncDir brings the names in a folder to the disk.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err == nil {
		err = errors.Join(d.Sync(), d.Close())
	}
	if err != nil {
		return ioFail(err, "%q can't be brought to the disk", dir)
	}
	return nil
}

// unused refuses what is mounted somewhere, or has a mount in it. Dir is its
// folder in the store.
func (s *Store) unused(hex, dir string) error {
	files, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		return ioFail(err, "the mounts can't be listed")
	}
	for _, file := range append(files, "/proc/self/mountinfo") {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		for line := range strings.SplitSeq(string(b), "\n") {
			// proc_pid_mountinfo(5): the 4th field is the folder that a mount
			// shows, wherever it is renamed to, the 5th where it is mounted.
			f := strings.SplitN(line, " ", 6)
			if len(f) < 6 {
				continue
			}
			if strings.HasSuffix(f[3], "/"+hex+"/tree") || f[4] == filepath.Join(s.dir, dir) || strings.HasPrefix(f[4], filepath.Join(s.dir, dir)+"/") {
				return fail(CodeInUse, nil, "%s%s is mounted by a broker or a session", scheme, hex)
			}
		}
	}
	return nil
}

// lock takes the flock(2) of a folder, which ends with its descriptor.
func lock(dir *os.File) error {
	return unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
}
