package cgroup

import (
	"bufio"
	"bytes"
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
	// The same line, "oom_kill N", stands in both.
	b, err := os.ReadFile(g.file("memory", path, g.pick("memory.oom_control", "memory.events")))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for an out-of-memory kill: %w", err)
	}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		if count, ok := strings.CutPrefix(lines.Text(), "oom_kill "); ok && count != "0" {
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
		case nil, unix.ENOENT, unix.EBUSY, unix.ENOTEMPTY, unix.ENOTDIR:
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
