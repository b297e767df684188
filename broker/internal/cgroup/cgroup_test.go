package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
)

const testTimeout = 30 * time.Second

// openGroups opens groups of the test's own in the host's hierarchies.
func openGroups(t *testing.T) *Groups {
	t.Helper()
	rootonly.Test(t)
	g, err := Open(fmt.Sprintf("/paseo-sandbox-%s-%d", strings.ToLower(t.Name()), os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.RemoveEmpty(g.Parent()); err != nil {
			t.Error(err)
		}
	})
	return g
}

const session = "0198c0de00007000800000000000beef"

// makeGroup makes a session's group with a limit of memory.
func makeGroup(t *testing.T, g *Groups, limit string) (path string) {
	t.Helper()
	path = g.Path(session)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if err := g.Remove(ctx, path); err != nil {
			t.Error(err)
		}
	})
	for _, c := range controllers {
		if err := os.MkdirAll(g.dir(c, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	set(t, g.file("memory", path, g.pick("memory.limit_in_bytes", "memory.max")), limit)
	return path
}

func set(t *testing.T, file, value string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
		t.Fatal(err)
	}
}

// R32 R34: an out-of-memory kill is seen while the cgroup is there, and the
// cgroup goes, its parent only once it is empty.
func TestOutOfMemoryIsSeenAndTheGroupRemoved(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	g := openGroups(t)
	name := makeGroup(t, g, strconv.Itoa(32<<20))
	dir := g.dir("memory", name)
	if killed, err := g.OOMKilled(name); err != nil || killed {
		t.Errorf("before: %v, %v", killed, err)
	}
	// It joins the group first: what it allocates afterwards is charged there.
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "echo $$ > "+dir+"/cgroup.procs && exec tail /dev/zero")
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) {
		t.Fatalf("a program that takes all memory ended with %v", err)
	}
	if killed, err := g.OOMKilled(name); err != nil || !killed {
		t.Errorf("after: %v, %v", killed, err)
	}
	for range 2 {
		if err := g.RemoveEmpty(filepath.Dir(name)); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Dir(dir)); err != nil {
			t.Errorf("a parent in use was removed: %v", err)
		}
	}
	for range 2 {
		if err := g.Remove(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := g.RemoveEmpty(filepath.Dir(name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Dir(dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the parent is still there: %v", err)
	}
	if killed, err := g.OOMKilled(name); err != nil || killed {
		t.Errorf("once it is gone: %v, %v", killed, err)
	}
}

// A group in use is not removed, and says so when the time is over.
func TestRemoveWaitsForProcesses(t *testing.T) {
	g := openGroups(t)
	name := makeGroup(t, g, strconv.Itoa(64<<20))
	dir := g.dir("memory", name)
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
	if err := g.Remove(short, name); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("removing a group in use: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if err := errors.Join(g.Remove(ctx, name), g.RemoveEmpty(filepath.Dir(name))); err != nil {
		t.Error(err)
	}
	if err := g.Remove(ctx, "/"); err == nil {
		t.Error("the root was removed")
	}
}
