package cgroup

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
)

const testTimeout = 30 * time.Second

// makeGroup makes a memory cgroup of the test's own, v1 or v2.
func makeGroup(t *testing.T, name, limit string) (dir string) {
	t.Helper()
	rootonly.Test(t)
	for _, c := range []struct{ dir, limit string }{
		{filepath.Join(root, "memory", name), "memory.limit_in_bytes"},
		{filepath.Join(root, name), "memory.max"},
	} {
		if _, err := os.Stat(filepath.Dir(filepath.Dir(c.dir))); err != nil {
			continue
		}
		if err := os.MkdirAll(c.dir, 0o755); err != nil {
			continue // not a cgroup's file system
		}
		if err := os.WriteFile(filepath.Join(c.dir, c.limit), []byte(limit), 0); err != nil {
			t.Fatal(err)
		}
		return c.dir
	}
	t.Fatal("there is no memory cgroup on this host")
	return ""
}

// R32 R34: an out-of-memory kill is seen while the cgroup is there, and the
// cgroup goes, its parent only once it is empty.
func TestOutOfMemoryIsSeenAndTheGroupRemoved(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	const name = "/paseo-sandbox-oom-test/one"
	dir := makeGroup(t, name, strconv.Itoa(32<<20))
	if killed, err := OOMKilled(name); err != nil || killed {
		t.Errorf("before: %v, %v", killed, err)
	}
	// It joins the group first: what it allocates afterwards is charged there.
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "echo $$ > "+dir+"/cgroup.procs && exec tail /dev/zero")
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) {
		t.Fatalf("a program that takes all memory ended with %v", err)
	}
	if killed, err := OOMKilled(name); err != nil || !killed {
		t.Errorf("after: %v, %v", killed, err)
	}
	for range 2 {
		if err := RemoveEmpty(filepath.Dir(name)); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Dir(dir)); err != nil {
			t.Errorf("a parent in use was removed: %v", err)
		}
	}
	for range 2 {
		if err := Remove(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := RemoveEmpty(filepath.Dir(name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Dir(dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the parent is still there: %v", err)
	}
	if killed, err := OOMKilled(name); err != nil || killed {
		t.Errorf("once it is gone: %v, %v", killed, err)
	}
}

// A group in use is not removed, and says so when the time is over.
func TestRemoveWaitsForProcesses(t *testing.T) {
	const name = "/paseo-sandbox-busy-test/one"
	dir := makeGroup(t, name, strconv.Itoa(64<<20))
	cmd := exec.Command("/bin/sh", "-c", "echo $$ > "+dir+"/cgroup.procs && exec sleep 1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	member := func() bool {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		return err == nil && len(b) > 0
	}
	for deadline := time.Now().Add(testTimeout); !member(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the process did not join the group")
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Remove(short, name); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("removing a group in use: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if err := errors.Join(Remove(ctx, name), RemoveEmpty(filepath.Dir(name))); err != nil {
		t.Error(err)
	}
	if err := Remove(ctx, "/"); err == nil {
		t.Error("the root was removed")
	}
}
