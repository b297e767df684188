package e2e

import (
	"bytes"
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// poll asks until the condition holds.
func poll(ctx context.Context, t *testing.T, what string, ok func() bool) {
	t.Helper()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("not in time: %s", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// inspectNow asks a broker that may be new.
func inspectNow(ctx context.Context, t *testing.T, s *harness.System, id wire.SessionID) wire.SessionInfo {
	t.Helper()
	b, err := client.DialBroker(ctx, s.BrokerSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	info, err := b.Inspect(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// regained counts how often a broker of the system took spares back.
func regained(t *testing.T, s *harness.System) int {
	t.Helper()
	log, err := os.ReadFile(s.BrokerLog())
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(log, []byte("spares_regained"))
}

// patientProfile is a program that gives a line back, and does not end with its
// input.
const patientProfile = `
[profiles.patient]
kind = "program"
framing = "lines"
command = ["/bin/sh", "-c", "head -n 1; exec sleep 1000"]
`

func deleteNow(ctx context.Context, t *testing.T, s *harness.System, id wire.SessionID) {
	t.Helper()
	b, err := client.DialBroker(ctx, s.BrokerSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Delete(ctx, id); err != nil {
		t.Error(err)
	}
}

// R33: broker and bridge die at once: the process runs, nobody holds its pipes,
// and that is what is said; what to do about it is the profile's to say.
func TestBothDie(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	for policy, want := range map[string]wire.State{"leave": wire.StateUnattached, "terminate": wire.StateExited} {
		t.Run(policy, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), deathsTimeout)
			defer cancel()
			s := startSmallSystem(t, harness.Options{Profiles: patientProfile + "unattached = \"" + policy + "\"\n"})
			_, first, info := startSession(ctx, t, s, client.CreateOptions{Profile: "patient"})
			first.Close()
			// The broker first: it would replace the bridge.
			if err := s.StopBroker(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(int(info.BridgePID), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if err := s.StartBroker(ctx); err != nil {
				t.Fatal(err)
			}
			poll(ctx, t, "the session is "+string(want), func() bool { return inspectNow(ctx, t, s, info.Session).State == want })
			deleteNow(ctx, t, s, info.Session)
		})
	}
}

// R31 R33: a session ends while no broker is there, and its bridge dies too: the
// next broker lets what was printed be read, and the exit with it.
func TestOutputOfAnEndedSession(t *testing.T) {
	rootonly.Test(t)
	for name, closes := range map[string]bool{"its input closed": true, "its input open": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			readEnded(t, closes)
		})
	}
}

func readEnded(t *testing.T, closes bool) {
	ctx, cancel := context.WithTimeout(t.Context(), deathsTimeout)
	defer cancel()
	s := startSmallSystem(t, harness.Options{Profiles: patientProfile})
	b, session, info := startSession(ctx, t, s, client.CreateOptions{Profile: "patient"})
	if _, err := session.Input(ctx, "1", []byte("kept\n")); err != nil {
		t.Fatal(err)
	}
	if r, err := session.Next(ctx); err != nil || string(r.Data) != "kept\n" {
		t.Fatalf("got %q, %v", r.Data, err)
	}
	if err := s.StopBroker(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if closes && session.CloseInput(ctx) == nil {
		t.Error("the input was closed without a broker, who has an end of it")
	}
	if err := syscall.Kill(int(info.SandboxPID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(int(info.BridgePID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := s.StartBroker(ctx); err != nil {
		t.Fatal(err)
	}
	poll(ctx, t, "another bridge", func() bool {
		now := inspectNow(ctx, t, s, info.Session)
		return now.State == wire.StateExited && now.BridgePID != info.BridgePID
	})
	c := &consumer{socket: b.SessionSocket(info)}
	if err := c.run(ctx); err != nil {
		t.Fatal(err)
	}
	if c.got.String() != "kept\n" || c.exit == nil || c.exit.Reason != wire.ReasonUnknown {
		t.Errorf("got %q, %+v", c.got.String(), c.exit)
	}
	deleteNow(ctx, t, s, info.Session)
}

// R31 R33: a session ends while no broker is there, and its bridge lives: the
// next broker learns from it how the agent ended.
func TestEndWithoutBroker(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), deathsTimeout)
	defer cancel()
	s := startSmallSystem(t, harness.Options{Profiles: echoProfiles})
	_, session, info := startSession(ctx, t, s, client.CreateOptions{Profile: "stdout"})
	if err := s.StopBroker(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Nothing is owed to the broker once the agent has ended, which may come
	// first: its input has no other end.
	if err := session.CloseInput(ctx); err != nil && wire.CodeOf(err) != wire.CodeBrokerUnreachable {
		t.Errorf("got %v", err)
	}
	r, err := session.Next(ctx)
	if err != nil || r.Stream != wire.StreamExit {
		t.Fatalf("got %+v, %v", r, err)
	}
	want, err := wire.DecodeExit(r.Data)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.StartBroker(ctx); err != nil {
		t.Fatal(err)
	}
	poll(ctx, t, "the broker knows the exit", func() bool {
		now := inspectNow(ctx, t, s, info.Session)
		return now.State == wire.StateExited && now.Exit != nil && *now.Exit == want
	})
	deleteNow(ctx, t, s, info.Session)
}
