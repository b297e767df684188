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

// root is where the hierarchies are mounted (cgroups(7)).
const root = "/sys/fs/cgroup"

// OOMKilled reports whether the kernel has killed a process of the cgroup for
// want of memory. Ask before the container is deleted: the count goes with the
// cgroup. A cgroup that is gone was not killed.
func OOMKilled(path string) (bool, error) {
	// The same line, "oom_kill N", stands in v1's memory.oom_control and in
	// v2's memory.events.
	for _, name := range []string{
		filepath.Join(root, "memory", path, "memory.oom_control"),
		filepath.Join(root, path, "memory.events"),
	} {
		b, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue
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
	}
	return false, nil
}

// retryInterval is how long a dying process is given between two looks.
const retryInterval = 5 * time.Millisecond

// Remove removes the cgroup, and those of its parents that are empty then,
// in every hierarchy. It waits until the context ends for processes that are
// dying. It is idempotent.
func Remove(ctx context.Context, path string) error {
	clean := filepath.Clean("/" + path)
	if clean == "/" {
		return fmt.Errorf("remove cgroup: %q is the root", path)
	}
	found, err := filepath.Glob(root + "/*")
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	for _, hierarchy := range append(found, root) {
		if err := removeIn(ctx, hierarchy, clean); err != nil {
			return err
		}
	}
	return nil
}

func removeIn(ctx context.Context, hierarchy, path string) error {
	if err := removeTree(ctx, filepath.Join(hierarchy, path)); err != nil {
		return err
	}
	for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
		// One that is in use or gone is not ours to remove.
		if unix.Rmdir(filepath.Join(hierarchy, dir)) != nil {
			break
		}
	}
	return nil
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
