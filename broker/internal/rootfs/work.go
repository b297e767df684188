package rootfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// work is a folder of the store that an import or a removal works in. While it
// is held nobody sweeps it away.
type work struct {
	path string
	dir  *os.File
}

// newWork makes a folder and takes its lock. The caller closes it.
func (s *Store) newWork(prefix string) (*work, error) {
	// A sweep may take a new folder for what a crash has left, in the moment
	// before it is locked.
	const attempts = 16
	for range attempts {
		path, err := os.MkdirTemp(s.dir, prefix)
		if err != nil {
			return nil, ioFail(err, "no folder can be made in the store %q", s.dir)
		}
		if dir := hold(path); dir != nil {
			return &work{path, dir}, nil
		}
	}
	return nil, fail(CodeFailed, nil, "each folder that is made in the store %q disappears", s.dir)
}

// hold opens and locks a folder. It returns nil if it is gone or held.
func hold(path string) *os.File {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	dir := os.NewFile(uintptr(fd), path)
	var held, named unix.Stat_t
	err = errors.Join(lock(dir), unix.Fstat(fd, &held), unix.Lstat(path, &named))
	if err != nil || held.Ino != named.Ino || held.Dev != named.Dev {
		dir.Close()
		return nil
	}
	return dir
}

// remove removes the folder and all in it.
func (w *work) remove() error { return os.RemoveAll(w.path) }

// close lets go of the folder.
func (w *work) close() { w.dir.Close() }

// Work is a folder that an import or a removal has left.
type Work struct {
	Path    string
	Changed time.Time
	// Err says why it could not be removed.
	Err error
}

// Sweep removes what crashed imports and removals have left, or only lists it
// (dry). What is being worked in is left alone. Error: CodeFailed when the store
// can't be read.
func (s *Store) Sweep(dry bool) ([]Work, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, ioFail(err, "the store %q can't be read", s.dir)
	}
	var found []Work
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".import-") && !strings.HasPrefix(e.Name(), ".remove-") {
			continue
		}
		w := Work{Path: filepath.Join(s.dir, e.Name())}
		dir := hold(w.Path)
		if dir == nil {
			continue
		}
		if info, err := dir.Stat(); err == nil {
			w.Changed = info.ModTime()
		}
		if !dry {
			w.Err = os.RemoveAll(w.Path)
		}
		w.Err = errors.Join(w.Err, dir.Close())
		found = append(found, w)
	}
	return found, nil
}

// sweep removes the folders that nobody holds any more.
func (s *Store) sweep() error {
	found, err := s.Sweep(false)
	for _, w := range found {
		err = errors.Join(err, w.Err)
	}
	return err
}
