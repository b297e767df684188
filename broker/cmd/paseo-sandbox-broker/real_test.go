package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// programs of sessions, each run by real runsc with a real bridge.
const programs = `
[profiles.hungry]
kind = "program"
framing = "lines"
command = ["/bin/bash", "-c", "x=0123456789abcdef; while :; do x=$x$x; done"]
memory = "128MiB"

[profiles.patient]
kind = "program"
framing = "lines"
command = ["/bin/bash", "-c", "trap '' TERM; echo > /workspace/armed; while :; do sleep 1; done"]

[profiles.loud]
kind = "program"
framing = "lines"
command = ["/bin/bash", "-c", "mkdir -p $HOME/$(printf 'd/%.0s' {1..200}); ln -s / $HOME/root; exit 7"]
`

// startReal starts a broker on real parts and connects to it.
func startReal(t *testing.T) (*harness.System, *client.Broker) {
	t.Helper()
	return startConfigured(t, "")
}

// startConfigured is startReal with more in broker.toml.
func startConfigured(t *testing.T, more string) (*harness.System, *client.Broker) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("root is needed to start sandboxes: sudo make test")
	}
	bin := t.TempDir()
	cmd := exec.Command("go", "build", "-o", bin+"/", "git.jb.codes/jb/paseo-sandbox/broker/cmd/...", "git.jb.codes/jb/paseo-sandbox/bridge/cmd/...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s, err := harness.New(harness.Options{
		Bin: bin, Profiles: programs, PeerUIDs: []uint32{0},
		Workspaces:   []harness.Workspace{{Name: "project", UID: 1000, GID: 1000}},
		BrokerConfig: func(config string) string { return config + more },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.LogTail())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.StartBroker(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, connect(t, s)
}

func connect(t *testing.T, s *harness.System) *client.Broker {
	t.Helper()
	b, err := client.DialBroker(t.Context(), s.BrokerSocket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func create(t *testing.T, s *harness.System, b *client.Broker, profile string) wire.SessionInfo {
	t.Helper()
	info, err := b.Create(t.Context(), client.CreateOptions{Workspace: "project", Profile: profile})
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// awaitExit polls until the session has ended and its exit is as wanted.
func awaitExit(t *testing.T, b *client.Broker, id wire.SessionID, want func(wire.Exit) bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		info, err := b.Inspect(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if info.State == wire.StateExited && info.Exit != nil && want(*info.Exit) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %s, %+v", info.State, info.Exit)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func wantNothing(t *testing.T, s *harness.System) {
	t.Helper()
	left, err := s.Leftovers()
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// R31, R32, R34: real sandboxes end for their reasons, and leave nothing.
func TestRealEnds(t *testing.T) {
	s, b := startReal(t)
	ctx := t.Context()
	t.Run("out of memory", func(t *testing.T) {
		info := create(t, s, b, "hungry")
		awaitExit(t, b, info.Session, func(e wire.Exit) bool {
			return e.Reason == wire.ReasonOutOfMemory && e.Code == 137 && e.Signal == "KILL"
		})
		if err := b.Delete(ctx, info.Session); err != nil {
			t.Error(err)
		}
		wantNothing(t, s)
	})
	t.Run("killed after the grace", func(t *testing.T) {
		info := create(t, s, b, "patient")
		// Before, TERM ends it.
		armed := filepath.Join(s.WorkspaceDir("project"), "armed")
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(armed); err == nil {
				break
			} else if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
		began := time.Now()
		got, err := b.Terminate(ctx, info.Session, 500*time.Millisecond)
		if err != nil || got.State != wire.StateExited || got.Exit.Reason != wire.ReasonTerminated || time.Since(began) < 500*time.Millisecond {
			t.Errorf("got %+v, %v after %v", got, err, time.Since(began))
		}
		awaitExit(t, b, info.Session, func(e wire.Exit) bool { return e.Code == 137 && e.Signal == "KILL" })
		if err := b.Delete(ctx, info.Session); err != nil {
			t.Error(err)
		}
		wantNothing(t, s)
	})
	t.Run("exits with links and depth", func(t *testing.T) {
		info := create(t, s, b, "loud")
		awaitExit(t, b, info.Session, func(e wire.Exit) bool { return e.Reason == wire.ReasonExited && e.Code == 7 })
		if err := b.Delete(ctx, info.Session); err != nil {
			t.Error(err)
		}
		wantNothing(t, s)
	})
	t.Run("deleted while it runs", func(t *testing.T) {
		info := create(t, s, b, "patient")
		if err := b.Delete(ctx, info.Session); err != nil {
			t.Error(err)
		}
		wantNothing(t, s)
	})
}

// R32, R33: a broker killed while sessions are made and deleted leaves nothing
// that the next one does not remove or hold.
func TestRealBrokerKilled(t *testing.T) {
	s, b := startReal(t)
	for i := range 6 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(40+70*i)*time.Millisecond)
		info, err := b.Create(ctx, client.CreateOptions{Workspace: "project", Profile: "patient"})
		cancel()
		if err == nil {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			_ = b.Delete(ctx, info.Session)
			cancel()
		}
		if err := s.StopBroker(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := s.StartBroker(t.Context()); err != nil {
			t.Fatal(err)
		}
		b = connect(t, s)
		all, err := b.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range all {
			if err := b.Delete(t.Context(), info.Session); err != nil {
				t.Error(err)
			}
		}
		wantNothing(t, s)
	}
}

// R19: the log has one audit line for each order of a session's life.
func TestRealAudit(t *testing.T) {
	s, b := startReal(t)
	info := create(t, s, b, "loud")
	awaitExit(t, b, info.Session, func(wire.Exit) bool { return true })
	if err := b.Delete(t.Context(), info.Session); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(s.BrokerLog())
	if err != nil {
		t.Fatal(err)
	}
	for _, operation := range []string{"create", "deleteSession"} {
		line := fmt.Sprintf("operation=%s session=%s decision=allow code=ok", operation, info.Session)
		if strings.Count(string(log), line) != 1 {
			t.Errorf("the audit has not one line with %q:\n%s", line, log)
		}
	}
}
