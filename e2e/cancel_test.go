package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/e2e/turn"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/client/pi"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// turnTimeout bounds a test with turns of real Pi.
const turnTimeout = 4 * time.Minute

// endless is a command that leaves a trace as long as it runs.
const endless = `i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo $i >> /workspace/NAME; sleep 0.1; done`

// conversation is a Pi with a model, and what it said.
type conversation struct {
	t       *testing.T
	session *client.Session
	said    []string
	given   int
}

// give sends a command; its id is its number.
func (c *conversation) give(ctx context.Context, command map[string]any) (id string) {
	c.t.Helper()
	c.given++
	id = fmt.Sprintf("given-%d", c.given)
	command["id"] = id
	b, err := json.Marshal(command)
	must(c.t, err)
	_, err = c.session.Input(ctx, id, append(b, '\n'))
	must(c.t, err)
	return id
}

// prompt begins a turn, or steers one.
func (c *conversation) prompt(ctx context.Context, message string) string {
	return c.give(ctx, map[string]any{"type": "prompt", "message": message, "streamingBehavior": "steer"})
}

// await reads until Pi has said all of the words in one record.
func (c *conversation) await(ctx context.Context, words ...string) string {
	c.t.Helper()
	for {
		r, err := c.session.Next(ctx)
		if err != nil {
			c.t.Fatalf("waiting for %q: %v; it said %.2000q", words, err, c.said)
		}
		c.said = append(c.said, string(r.Data))
		if contains(string(r.Data), words) {
			return string(r.Data)
		}
	}
}

func contains(text string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// count counts the records since a place in what was said that have all words.
func (c *conversation) count(since int, words ...string) (n int) {
	for _, text := range c.said[since:] {
		if contains(text, words) {
			n++
		}
	}
	return n
}

// cancel cancels, and keeps what Pi says meanwhile.
func (c *conversation) cancel(ctx context.Context, o pi.CancelOptions) pi.Cancelled {
	c.t.Helper()
	o.Record = func(r client.Record) error {
		c.said = append(c.said, string(r.Data))
		return nil
	}
	got, err := pi.CancelTurn(ctx, c.session, o)
	if err != nil {
		c.t.Fatalf("%v; it said %.4000q", err, c.said)
	}
	return got
}

// awaitFile waits for a file of the workspace.
func awaitFile(ctx context.Context, t *testing.T, s *harness.System, name string) {
	t.Helper()
	poll(ctx, t, "the file "+name, func() bool {
		_, err := os.Stat(filepath.Join(s.WorkspaceDir("project"), name))
		return err == nil
	})
}

// R44 R45 R46: a cancellation leaves real Pi with nothing to do, whatever it
// did, and ready for the next turn.
func TestCancelRealTurn(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	tables, err := turn.Credentials(t.TempDir())
	must(t, err)
	s := startSystem(t, harness.Options{Profiles: tables + echoProfiles})
	ctx, cancel := context.WithTimeout(t.Context(), turnTimeout)
	defer cancel()
	_, session, _ := startSession(ctx, t, s, turn.Create())
	c := &conversation{t: t, session: session}
	named := func(name string) string { return strings.ReplaceAll(endless, "NAME", name) }

	if got := c.cancel(ctx, pi.CancelOptions{ID: "nothing"}); got != (pi.Cancelled{}) {
		t.Errorf("nothing: %+v", got)
	}
	c.give(ctx, map[string]any{"type": "bash", "command": named("bash")})
	awaitFile(ctx, t, s, "bash")
	if got := c.cancel(ctx, pi.CancelOptions{ID: "bash"}); got.Turn || got.Dialogs > 0 {
		t.Errorf("bash: %+v", got)
	}
	c.prompt(ctx, "run "+named("tool"))
	awaitFile(ctx, t, s, "tool")
	if got := c.cancel(ctx, pi.CancelOptions{ID: "tool"}); got != (pi.Cancelled{Turn: true}) {
		t.Errorf("tool: %+v", got)
	}
	// This Pi does not know clear_queue, and begins with what waits.
	since := len(c.said)
	c.prompt(ctx, "run "+named("queue"))
	awaitFile(ctx, t, s, "queue")
	for i := range 3 {
		c.prompt(ctx, fmt.Sprintf("run echo %d >> /workspace/queued", i))
	}
	if got := c.cancel(ctx, pi.CancelOptions{ID: "queue"}); got != (pi.Cancelled{Turn: true}) {
		t.Errorf("queue: %+v", got)
	}
	if n := c.count(since, `"type":"agent_settled"`); n != 1 {
		t.Errorf("it settled %d times", n)
	}
	// "No" to this question would let the tool run.
	c.prompt(ctx, "run echo guarded >> /workspace/guarded")
	c.await(ctx, `"extension_ui_request"`, `"confirm"`)
	if got := c.cancel(ctx, pi.CancelOptions{ID: "guarded"}); got != (pi.Cancelled{Turn: true, Dialogs: 1}) {
		t.Errorf("guarded: %+v", got)
	}
	// Pi has not said a word about this one yet.
	id := c.prompt(ctx, "run "+named("early"))
	if got := c.cancel(ctx, pi.CancelOptions{ID: "early", Prompts: []string{id}}); !got.Turn {
		t.Errorf("early: %+v", got)
	}
	since = len(c.said)
	c.prompt(ctx, "hello")
	c.await(ctx, `"type":"agent_settled"`)
	if c.count(since, `"type":"message_end"`, "final: hello") != 1 {
		t.Errorf("after all that it said %q", c.said[since:])
	}
	for _, name := range []string{"queued", "guarded"} {
		if _, err := os.Stat(filepath.Join(s.WorkspaceDir("project"), name)); err == nil {
			t.Errorf("what was cancelled made the file %s", name)
		}
	}
	_, other, _ := startSession(ctx, t, s, client.CreateOptions{Profile: "stdout"})
	if _, err := pi.CancelTurn(ctx, other, pi.CancelOptions{ID: "other"}); wire.CodeOf(err) != wire.CodeInvalidArgument {
		t.Errorf("a session that does not run Pi: %v", err)
	}
}
