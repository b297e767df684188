package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// OOMKilled reports whether the kernel has killed a process of the cgroup for
// want of memory. Ask before the container is deleted: the count goes with the
// cgroup. A cgroup that is gone was not killed.
func (g *Groups) OOMKilled(path string) (bool, error) {
	return g.happened("memory", path, g.pick("memory.oom_control", "memory.events"), "oom_kill")
}

// Crowded reports whether the kernel has refused the cgroup a thread, as
// OOMKilled does.
func (g *Groups) Crowded(path string) (bool, error) {
	return g.happened("pids", path, "pids.events", "max")
}

// happened reports whether a file counts an event, as "NAME N".
func (g *Groups) happened(controller, path, file, name string) (bool, error) {
	b, err := os.ReadFile(g.file(controller, path, file))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for limits that were reached: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if count, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok && count != "0" {
			return true, nil
		}
	}
	return false, nil
}

// retryInterval is how long a dying process is given between two looks.
const retryInterval = 5 * time.Millisecond

// Remove removes the cgroup in every hierarchy. It waits until the context ends
// for processes that are dying. It is idempotent.
func (g *Groups) Remove(ctx context.Context, path string) error {
	dirs, err := g.everywhere(path)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := removeTree(ctx, dir); err != nil {
			return err
		}
	}
	return nil
}

// RemoveEmpty removes the cgroup in every hierarchy in which nothing is in it.
// It is idempotent.
func (g *Groups) RemoveEmpty(path string) error {
	dirs, err := g.everywhere(path)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		switch err := unix.Rmdir(dir); err {
		// systemd makes the tmpfs read-only in which v1 hierarchies are mounted.
		case nil, unix.ENOENT, unix.EBUSY, unix.ENOTEMPTY, unix.ENOTDIR, unix.EROFS:
		default:
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}
	return nil
}

// everywhere returns the cgroup's folders in all hierarchies, there or not.
func (g *Groups) everywhere(path string) ([]string, error) {
	clean := filepath.Clean("/" + path)
	if clean == "/" {
		return nil, fmt.Errorf("remove cgroup: %q is the root", path)
	}
	hierarchies, err := filepath.Glob(g.root + "/*")
	if err != nil {
		return nil, fmt.Errorf("remove cgroup: %w", err)
	}
	var dirs []string
	for _, h := range append(hierarchies, g.root) {
		dirs = append(dirs, filepath.Join(h, clean))
	}
	return dirs, nil
}

// removeTree removes the children first: a cgroup's folder holds files that
// can't be removed and folders that must be.
func removeTree(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := removeTree(ctx, filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	for {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove cgroup %s: it is in use: %w", dir, context.Cause(ctx))
		case <-time.After(retryInterval):
		}
	}
}
