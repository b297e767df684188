package cgroup

import "context"

// OOMKilled reports whether the kernel has killed a process of the cgroup for
// want of memory. Ask before the container is deleted: the count goes with the
// cgroup. A cgroup that is gone was not killed.
func OOMKilled(path string) (bool, error) { panic("stub") }

// Remove removes the cgroup, and those of its parents that are empty then, in
// every hierarchy. It waits until the context ends for processes that are
// dying. It is idempotent.
func Remove(ctx context.Context, path string) error { panic("stub") }
