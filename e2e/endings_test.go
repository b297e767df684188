package e2e

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// endingProfiles are agents that end, or are ended, in the way of their name.
// Those that wait do so for a file that the test makes.
const endingProfiles = `
[profiles.grandchild]
kind = "program"
framing = "lines"
command = ["/bin/sh", "-c", "sleep 1000 & echo last words; exit 3"]

[profiles.full-pipe]
kind = "program"
framing = "lines"
command = ["/bin/sh", "-c", "until [ -e /workspace/write ]; do sleep 0.05; done; head -c 60000 /dev/zero; exit 4"]

[profiles.killed]
kind = "program"
framing = "lines"
command = ["/bin/sh", "-c", "echo first words; exec sleep 1000"]

[profiles.deaf]
kind = "program"
framing = "lines"
command = ["/bin/sh", "-c", "exec <&-; echo closed; until [ -e /workspace/end ]; do sleep 0.05; done; echo heard nothing; exit 5"]
`

// ending is one session that ends.
type ending struct {
	t       *testing.T
	system  *harness.System
	broker  *client.Broker
	session *client.Session
	info    wire.SessionInfo
}

// touch makes the file that an agent waits for.
func (e *ending) touch(name string) {
	e.t.Helper()
	if err := os.WriteFile(filepath.Join(e.system.WorkspaceDir("project"), name), nil, 0o644); err != nil {
		e.t.Fatal(err)
	}
}

// next returns the next record.
func (e *ending) next(ctx context.Context) string {
	e.t.Helper()
	r, err := e.session.Next(ctx)
	if err != nil {
		e.t.Fatal(err)
	}
	return string(r.Data)
}

// R31 R48: however an agent ends, every byte that it printed comes, then its
// exit, once, as it was: with a process that holds its output open, with output
// still in the pipe while the bridge is dead, killed with its whole sandbox from
// outside, and with its input closed long before.
func TestEndings(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	s := startSmallSystem(t, harness.Options{Profiles: endingProfiles})
	for profile, c := range map[string]struct {
		end    func(context.Context, *ending)
		output string
		exit   wire.Exit
	}{
		"grandchild": {func(context.Context, *ending) {}, "last words\n", wire.Exit{Code: 3, Reason: wire.ReasonExited}},
		"full-pipe":  {endBehindTheBridge, string(make([]byte, 60000)), wire.Exit{Code: 4, Reason: wire.ReasonExited}},
		"killed":     {killFromOutside, "first words\n", wire.Exit{Code: 255, Reason: wire.ReasonUnknown}},
		"deaf":       {speakToTheDeaf, "closed\nheard nothing\n", wire.Exit{Code: 5, Reason: wire.ReasonExited, InputAccepted: deafInput}},
	} {
		t.Run(profile, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), deathsTimeout)
			defer cancel()
			b, session, info := startSession(ctx, t, s, client.CreateOptions{Profile: profile})
			e := &ending{t: t, system: s, broker: b, session: session, info: info}
			c.end(ctx, e)
			got := &consumer{socket: b.SessionSocket(info)}
			if err := got.run(ctx); err != nil {
				t.Fatal(err)
			}
			exit := *got.exit
			if profile == "deaf" && exit.InputDelivered < deafInput {
				exit.InputDelivered = 0 // as much as the pipe took
			}
			if got.got.String() != c.output || exit != c.exit {
				t.Errorf("got %d bytes, %.80q, exit %+v, want %+v", got.got.Len(), got.got.Bytes(), *got.exit, c.exit)
			}
			if err := b.Delete(ctx, info.Session); err != nil {
				t.Error(err)
			}
		})
	}
}

// endBehindTheBridge lets the agent write and end while its bridge is stopped,
// then kills the bridge.
func endBehindTheBridge(ctx context.Context, e *ending) {
	e.t.Helper()
	if err := syscall.Kill(int(e.info.BridgePID), syscall.SIGSTOP); err != nil {
		e.t.Fatal(err)
	}
	e.touch("write")
	poll(ctx, e.t, "the sandbox has ended", func() bool { return !harness.Alive(e.info.SandboxPID, e.info.SandboxStart) })
	// The broker may have found it hung, and killed it.
	if err := syscall.Kill(int(e.info.BridgePID), syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		e.t.Fatal(err)
	}
}

func killFromOutside(ctx context.Context, e *ending) {
	e.t.Helper()
	if got := e.next(ctx); got != "first words\n" {
		e.t.Errorf("got %q", got)
	}
	if err := syscall.Kill(int(e.info.SandboxPID), syscall.SIGKILL); err != nil {
		e.t.Fatal(err)
	}
}

// deafInput is more than a pipe holds.
const deafInput = 3 << 20

// speakToTheDeaf gives input to an agent that has closed its own: it is taken
// into custody, and holds up nobody.
func speakToTheDeaf(ctx context.Context, e *ending) {
	e.t.Helper()
	if got := e.next(ctx); got != "closed\n" {
		e.t.Errorf("got %q", got)
	}
	if _, err := e.session.Input(ctx, "late", make([]byte, deafInput)); err != nil {
		e.t.Error(err)
	}
	e.touch("end")
}
