package session

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxDepth is how deep removeTree descends before it lifts what is below.
const maxDepth = 64

// removeTree removes a folder with all that is in it, or does nothing if there
// is none. Agents fill these folders: links are not followed, and folders may
// nest deeper than there are descriptors, where os.RemoveAll fails.
func removeTree(path string) error {
	dir, err := openDir(unix.AT_FDCWD, path)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	defer dir.Close()
	r := remover{top: int(fd(dir))}
	for {
		if err := r.clear(dir, 0); err != nil {
			return fmt.Errorf("remove %s: %w", path, err)
		}
		// What was lifted lies in the top folder now.
		err := unix.Rmdir(path)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.ENOTEMPTY) || !r.progress {
			return fmt.Errorf("remove %s: %w", path, err)
		}
		r.progress = false
	}
}

type remover struct {
	top      int
	progress bool
	names    int
}

func (r *remover) clear(dir *os.File, depth int) error {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return err
	}
	for {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			if err := r.remove(dir, name, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *remover) remove(dir *os.File, name string, depth int) error {
	at := int(fd(dir))
	r.progress = true
	err := unix.Unlinkat(at, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	if depth >= maxDepth {
		return r.lift(at, name)
	}
	sub, err := openDir(at, name)
	if err != nil {
		return err
	}
	err = r.clear(sub, depth+1)
	sub.Close()
	if err != nil {
		return err
	}
	return unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
}

// lift moves a folder to the top, under a name that is free.
func (r *remover) lift(at int, name string) error {
	for {
		r.names++
		err := unix.Renameat2(at, name, r.top, fmt.Sprintf("lifted-%d", r.names), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
}

func openDir(at int, name string) (*os.File, error) {
	n, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), name), nil
}

// fd lends the descriptor; a folder has no O_NONBLOCK to lose.
func fd(f *os.File) uintptr { return f.Fd() }
