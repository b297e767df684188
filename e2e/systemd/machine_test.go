package systemd

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
)

// A machine boots, runs what it is told, and leaves nothing.
func TestMachine(t *testing.T) {
	rootonly.Test(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	m, err := New()
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	defer func() {
		if !closed {
			m.Close()
		}
	}()
	if err := m.Write("/etc/systemd/system/hello.service", "[Service]\nType=oneshot\nExecStart=/bin/echo hello\n", 0o644); err != nil {
		t.Fatal(err)
	}
	if err := m.Boot(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Run(ctx, "systemctl", "start", "hello"); err != nil {
		t.Error(err)
	}
	if said, err := m.Journal(ctx, "hello"); err != nil || !strings.Contains(said, "hello\n") {
		t.Errorf("got %q, %v", said, err)
	}
	if result, err := m.Show(ctx, "hello", "Result"); err != nil || result != "success" {
		t.Errorf("got %q, %v", result, err)
	}
	if out, err := m.Run(ctx, "false"); err == nil {
		t.Errorf("false succeeds: %q", out)
	}
	began := time.Now()
	closed = true
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	t.Logf("closed in %v", time.Since(began))
	left, err := filepath.Glob("/sys/fs/cgroup/*/" + filepath.Base(m.dir))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := os.Lstat(m.dir); !os.IsNotExist(err) {
		t.Errorf("the folder: %v", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), m.dir) {
		t.Errorf("a mount is left, %v", err)
	}
}
