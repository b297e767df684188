package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/e2e/turn"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/client/pi"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// daemonProcess is a daemon. One that fails, without having been killed, ends
// the test at once.
type daemonProcess struct {
	cmd    *exec.Cmd
	killed atomic.Bool
	done   chan struct{}
}

// startDaemon starts our own executable as a daemon of another user's.
func startDaemon(t *testing.T, s *harness.System, dir string, role turn.Role, fail context.CancelFunc) *daemonProcess {
	t.Helper()
	variable, err := turn.Config{Role: role, BrokerSocket: s.BrokerSocket(), StateDir: dir}.Environment()
	must(t, err)
	// The link works for a user who could not walk to the file itself.
	d := &daemonProcess{cmd: exec.Command("/proc/self/exe"), done: make(chan struct{})}
	d.cmd.Env, d.cmd.Dir, d.cmd.Stderr = []string{variable}, "/", os.Stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: s.PeerUID(), Gid: s.PeerUID()}}
	must(t, d.cmd.Start())
	go func() {
		defer close(d.done)
		if err := d.cmd.Wait(); err != nil && !d.killed.Load() {
			t.Errorf("daemon %s: %v", role, err)
			fail()
		}
	}()
	t.Cleanup(d.kill)
	return d
}

// kill is idempotent.
func (d *daemonProcess) kill() {
	d.killed.Store(true)
	d.cmd.Process.Kill()
	<-d.done
}

func linesOf(t *testing.T, s *harness.System, name string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.WorkspaceDir("project"), name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte("\n"))
}

// R33 R40 R41 R43 R44 R45 R46 R48: while a turn of real Pi with an authenticated
// model runs its tool, the bridge, the broker and the daemon are killed, one
// after the other. The next daemon reads the rest of the turn, each record once,
// and answers the dialog that was open all the time; one more cancels what that
// one began.
func TestTurnOutlivesBridgeBrokerAndDaemon(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	tables, err := turn.Credentials(t.TempDir())
	must(t, err)
	s := startSystem(t, harness.Options{PeerUIDs: []uint32{harness.DefaultPeerUID}, Profiles: tables})
	ctx, cancel := context.WithTimeout(t.Context(), turnTimeout)
	defer cancel()
	dir := filepath.Join(s.Prefix, "daemon")
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.Chown(dir, harness.DefaultPeerUID, harness.DefaultPeerUID))
	goesOn := func(name, when string) {
		t.Helper()
		n := linesOf(t, s, name)
		poll(ctx, t, "the tool goes on "+when, func() bool { return linesOf(t, s, name) > n+2 })
	}

	one := startDaemon(t, s, dir, turn.RoleFirst, cancel)
	goesOn("counted", "with everybody there")
	info, err := turn.Session(dir)
	must(t, err)
	must(t, syscall.Kill(int(info.BridgePID), syscall.SIGKILL))
	goesOn("counted", "after the bridge's death")
	poll(ctx, t, "another bridge", func() bool {
		now := adminInspect(ctx, t, s, info.Session)
		return now.BridgePID != info.BridgePID && now.State == wire.StateRunning
	})
	must(t, s.StopBroker(syscall.SIGKILL))
	goesOn("counted", "without a broker")
	must(t, s.StartBroker(ctx))
	one.kill()
	goesOn("counted", "without a daemon")
	two := startDaemon(t, s, dir, turn.RoleSecond, cancel)
	poll(ctx, t, "the second daemon is attached", func() bool {
		_, err := os.Stat(filepath.Join(dir, turn.AttachedFile))
		return err == nil
	})
	must(t, os.WriteFile(filepath.Join(s.WorkspaceDir("project"), "go"), nil, 0o644))
	goesOn("endless", "in the second turn")
	two.kill()
	if now := adminInspect(ctx, t, s, info.Session); now.SandboxPID != info.SandboxPID || now.SandboxStart != info.SandboxStart {
		t.Errorf("the sandbox was %+v, is %+v", info, now)
	}
	three := startDaemon(t, s, dir, turn.RoleThird, cancel)
	<-three.done
	checkTurns(t, s, dir)
	checkNothing(t, s)
}

// checkTurns compares what the daemons have on disk with what happened.
func checkTurns(t *testing.T, s *harness.System, dir string) {
	t.Helper()
	records, err := turn.Records(dir)
	must(t, err)
	count := func(words ...string) (n int) {
		for _, r := range records {
			if contains(string(r.Data), words) {
				n++
			}
		}
		return n
	}
	for i, r := range records {
		if r.Sequence != uint64(i+1) {
			t.Fatalf("record %d is the %dth that was stored", r.Sequence, i+1)
		}
	}
	counted := linesOf(t, s, "counted")
	for what, c := range map[string]struct {
		words []string
		want  int
	}{
		"the end of the first turn's text":      {[]string{`"type":"message_end"`, fmt.Sprintf("final: the tool printed %d lines", counted+1)}, 1},
		"ends of texts":                         {[]string{`"type":"message_end"`, `final: `}, 1},
		"beginnings of tools":                   {[]string{`"type":"tool_execution_start"`}, 2},
		"ends of tools":                         {[]string{`"type":"tool_execution_end"`}, 2},
		"ends of the first tool":                {[]string{`"type":"tool_execution_end"`, fmt.Sprintf(`line %d\nend`, counted), `line 1\nline 2\nline 3\n`}, 1},
		"ends of turns":                         {[]string{`"type":"agent_settled"`}, 2},
		"ends of the dialog that was answered":  {[]string{"ask answered: true"}, 1},
		"ends of the dialog that was cancelled": {[]string{"ask answered: false"}, 1},
		"ends of the tool that was cancelled":   {[]string{`"type":"tool_execution_end"`, "Command aborted"}, 1},
	} {
		if got := count(c.words...); got != c.want {
			t.Errorf("%s: %d, want %d", what, got, c.want)
		}
	}
	if got, err := turn.Cancelled(dir); err != nil || got != (pi.Cancelled{Turn: true, Dialogs: 1}) {
		t.Errorf("cancelled %+v, %v", got, err)
	}
	if n := linesOf(t, s, "runs"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
	requests, err := os.ReadFile(filepath.Join(s.WorkspaceDir("project"), "requests"))
	if err != nil || strings.ReplaceAll(string(requests), "true\n", "") != "" || len(requests) < 3*len("true\n") {
		t.Errorf("with the key: %q, %v", requests, err)
	}
	if t.Failed() {
		for _, r := range records {
			t.Logf("%d: %.400s", r.Sequence, r.Data)
		}
	}
}

// adminInspect asks as an operator: the deployment's socket is the daemons'.
func adminInspect(ctx context.Context, t *testing.T, s *harness.System, id wire.SessionID) wire.SessionInfo {
	t.Helper()
	b, err := client.DialBroker(ctx, s.AdminSocket())
	must(t, err)
	defer b.Close()
	info, err := b.Inspect(ctx, id)
	must(t, err)
	return info
}
