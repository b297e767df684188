package setup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"golang.org/x/sys/unix"
)

// R16: a build puts a sealed artifact in place, leaves no work behind, and is
// found ready; without a recorded digest it is read in full first.
func TestBuildAndReady(t *testing.T) {
	rootonly.Test(t)
	s, f := newSetup(t), newFake()
	locs, err := s.Build(t.Context(), []*Recipe{&f.Recipe})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(s.Cache, "work", "fake")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("work is left behind: %v", err)
	}
	for _, known := range []artifact.Location{locs[0], {}} {
		loc, ready, err := s.Ready(t.Context(), &f.Recipe, known)
		if err != nil || !ready || loc != locs[0] {
			t.Errorf("known %v: got %v, %v, %v", known, loc, ready, err)
		}
	}
	f.Key = "k2"
	if _, ready, err := s.Ready(t.Context(), &f.Recipe, locs[0]); ready || err != nil {
		t.Errorf("another recipe: got %v, %v", ready, err)
	}
}

// R16: a finished artifact that was changed is an error, and is built again only
// when that is asked for.
func TestReadyRefusesChanges(t *testing.T) {
	rootonly.Test(t)
	s, f := newSetup(t), newFake()
	locs, err := s.Build(t.Context(), []*Recipe{&f.Recipe})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(locs[0].Path, "three"), []byte("thr3e"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, ready, err := s.Ready(t.Context(), &f.Recipe, locs[0]); !ready || err != nil {
		t.Errorf("the cheap check reads no file, but got %v, %v", ready, err)
	}
	_, _, err = s.Ready(t.Context(), &f.Recipe, artifact.Location{})
	wantCode(t, err, artifact.CodeDigestMismatch)
	s.Verify = true
	_, _, err = s.Ready(t.Context(), &f.Recipe, locs[0])
	wantCode(t, err, artifact.CodeDigestMismatch)

	s.Force = true
	again, err := s.Build(t.Context(), []*Recipe{&f.Recipe})
	if err != nil || again[0] != locs[0] {
		t.Fatalf("got %v, %v", again, err)
	}
	if _, ready, err := s.Ready(t.Context(), &f.Recipe, again[0]); !ready || err != nil {
		t.Errorf("after the new build: got %v, %v", ready, err)
	}
}

// R16: a recipe that makes what an artifact may not hold never gets into place.
func TestBuildRefusesForbidden(t *testing.T) {
	rootonly.Test(t)
	s, f := newSetup(t), newFake()
	f.Stages[2].Run = func(_ context.Context, _ *Bench, out string) error {
		if err := os.Mkdir(filepath.Join(out, "tree"), 0o755); err != nil {
			return err
		}
		return unix.Mknod(filepath.Join(out, "tree", "mem"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 1)))
	}
	_, err := s.Build(t.Context(), []*Recipe{&f.Recipe})
	wantCode(t, err, artifact.CodeForbiddenEntry)
	if _, err := os.Stat(s.artifactDir(&f.Recipe)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is in place: %v", err)
	}
}

// A cancelled command ends with everything it started, however that hides, and
// its mounts go with it.
func TestCommandEndsWithItsChildren(t *testing.T) {
	rootonly.Test(t)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// The grandchild leaves the process group and ignores what it can.
	script := `mkdir m && mount -t tmpfs none m && setsid sh -c 'trap "" TERM INT HUP; exec sleep 987' & echo started; wait`
	c := Command{Args: []string{"sh", "-c", script}, Dir: dir, Log: filepath.Join(dir, "log")}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	sleeper := 0
	for deadline := time.Now().Add(20 * time.Second); sleeper == 0 && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		sleeper = findInDir(dir, "sleep\x00987\x00")
	}
	if sleeper == 0 {
		t.Fatal("the grandchild never started")
	}
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the command does not end")
	}
	if pid := findInDir(dir, "sleep\x00987\x00"); pid != 0 {
		t.Errorf("process %d lives on", pid)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("its mount is visible here, or: %v", err)
	}
}

// findInDir returns the process with this command line and working directory.
func findInDir(dir, cmdline string) int {
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		data, _ := os.ReadFile(p + "/cmdline")
		cwd, _ := os.Readlink(p + "/cwd")
		if string(data) == cmdline && cwd == dir {
			pid, _ := strconv.Atoi(filepath.Base(p))
			return pid
		}
	}
	return 0
}

// A failing command is told with the end of its output.
func TestCommandFails(t *testing.T) {
	rootonly.Test(t)
	dir := t.TempDir()
	c := Command{Args: []string{"sh", "-c", "echo the reason; exit 3"}, Dir: dir, Log: filepath.Join(dir, "log")}
	err := c.Run(t.Context())
	wantCode(t, err, CodeStageFailed)
	if !strings.Contains(err.Error(), "the reason") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("it says %q", err)
	}
}

// A tree with a mount beneath it is not removed: the removal would reach into
// what is mounted.
func TestRemoveTreeStopsAtMounts(t *testing.T) {
	rootonly.Test(t)
	dir := t.TempDir()
	inner := filepath.Join(dir, "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", inner, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := removeTree(dir); err == nil {
		t.Error("it was removed")
	}
	if err := unix.Unmount(inner, 0); err != nil {
		t.Fatal(err)
	}
	if err := removeTree(dir); err != nil {
		t.Error(err)
	}
}
