package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// output is what a program prints.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// onlooker is the command paseo-sandbox, attached as an observer.
type onlooker struct {
	cmd         *exec.Cmd
	stdout, err output
	done        chan struct{}
}

func lookOn(ctx context.Context, t *testing.T, s *harness.System, id wire.SessionID, from ...string) *onlooker {
	t.Helper()
	args := append([]string{"attach", "--socket", s.BrokerSocket(), "--observe"}, from...)
	l := &onlooker{cmd: exec.CommandContext(ctx, s.Program("paseo-sandbox"), append(args, string(id))...), done: make(chan struct{})}
	l.cmd.Stdout, l.cmd.Stderr = &l.stdout, &l.err
	must(t, l.cmd.Start())
	go func() {
		defer close(l.done)
		l.cmd.Wait()
	}()
	t.Cleanup(func() {
		l.cmd.Process.Kill()
		<-l.done
	})
	poll(ctx, t, "the command is attached", func() bool { return strings.Contains(l.err.String(), "attached to session") })
	return l
}

// R41 R47: the command paseo-sandbox joins a session at its oldest record, after
// a cursor and live, and ends as the agent does.
func TestAttachFrom(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	s := startSmallSystem(t, harness.Options{Profiles: echoProfiles})
	ctx, cancel := context.WithTimeout(t.Context(), bytesTimeout)
	defer cancel()
	b, session, info := startSession(ctx, t, s, client.CreateOptions{Profile: "stdout"})
	say := func(line string) {
		t.Helper()
		_, err := session.Input(ctx, line, []byte(line+"\n"))
		must(t, err)
		if r, err := session.Next(ctx); err != nil || string(r.Data) != line+"\n" {
			t.Fatalf("%q, %v", r.Data, err)
		}
	}
	for i := range 3 {
		say(fmt.Sprint(i))
	}
	lookers := map[string]*onlooker{
		"0\n1\n2\nnew\n": lookOn(ctx, t, s, info.Session, "--from", "oldest"),
		"2\nnew\n":       lookOn(ctx, t, s, info.Session, "--cursor", client.FormatCursor(wire.Cursor{Epoch: info.Epoch, Sequence: 2})),
		"new\n":          lookOn(ctx, t, s, info.Session, "--from", "live"),
	}
	say("new")
	must(t, session.CloseInput(ctx))
	for want, l := range lookers {
		<-l.done
		if got := l.stdout.String(); got != want || l.cmd.ProcessState.ExitCode() != 0 {
			t.Errorf("it printed %q, want %q, %v: %s", got, want, l.cmd.ProcessState, l.err.String())
		}
	}
	must(t, b.Delete(ctx, info.Session))
}
