package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/e2e/story"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// storyTimeout bounds one telling of the story.
const storyTimeout = 3 * time.Minute

func tell(t *testing.T, o story.Options) story.Report {
	t.Helper()
	rootonly.Test(t)
	ctx, cancel := context.WithTimeout(t.Context(), storyTimeout)
	defer cancel()
	o.Bin, o.Say = programs(t), t.Logf
	report := story.Run(ctx, o)
	b, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", b)
	return report
}

// R40 R41 R42 R43 R44 R45 R50: real Pi under real runsc goes on with its work
// while its daemon is killed and replaced, and nothing is left at the end.
func TestStory(t *testing.T) {
	t.Parallel()
	report := tell(t, story.Options{})
	if report.Verdict != story.VerdictProved {
		t.Fatalf("verdict %s: %s", report.Verdict, report.Error)
	}
}

// TestStoryNoticesBrokenFeatures breaks one feature at a time and demands that
// its flag says so: a flag that stays true whatever happens proves nothing.
func TestStoryNoticesBrokenFeatures(t *testing.T) {
	var sessionID = regexp.MustCompile(`"sessionId":"[^"]+"`)
	onlyRecords := func(change func(*wire.Record)) func(wire.Message) wire.Message {
		return func(m wire.Message) wire.Message {
			if r, ok := m.(wire.Records); ok {
				for i := range r.Records {
					change(&r.Records[i])
				}
			}
			return m
		}
	}
	for name, c := range map[string]struct {
		lies    lies
		options story.Options
		flags   func(story.Report) []bool
	}{
		"no fence": {
			lies: lies{toBridge: func(m wire.Message) (wire.Message, wire.Message) {
				if a, ok := m.(wire.Attach); ok && a.Client == "rival" {
					a.Takeover = true
					return a, nil
				}
				return m, nil
			}},
			flags: func(r story.Report) []bool { return []bool{r.WriterFencePassed} },
		},
		"no replay": {
			lies: lies{toBridge: func(m wire.Message) (wire.Message, wire.Message) {
				if a, ok := m.(wire.Attach); ok && a.Client == "daemon-two" {
					a.From, a.Cursor = wire.FromLive, nil
					return a, nil
				}
				return m, nil
			}},
			flags: func(r story.Report) []bool { return []bool{r.SawReplayedRecord} },
		},
		"sequences change": {
			lies: lies{
				toClient: onlyRecords(func(r *wire.Record) { r.Sequence += 1000 }),
				toBridge: func(m wire.Message) (wire.Message, wire.Message) {
					if a, ok := m.(wire.Ack); ok {
						a.Cursor.Sequence -= 1000
						return a, nil
					}
					return m, nil
				},
			},
			flags: func(r story.Report) []bool { return []bool{r.DuplicateReplaySuppressed, r.SawReplayedRecord} },
		},
		"abort does nothing": {
			lies: lies{toClient: onlyRecords(func(r *wire.Record) {
				r.Data = bytes.ReplaceAll(r.Data, []byte(`"cancelled":true`), []byte(`"cancelled":false`))
			})},
			flags: func(r story.Report) []bool { return []bool{r.BashCancelled} },
		},
		"another Pi session": {
			lies: lies{toClient: onlyRecords(func(r *wire.Record) {
				r.Data = sessionID.ReplaceAll(r.Data, []byte(`"sessionId":"another"`))
			})},
			flags: func(r story.Report) []bool { return []bool{r.PiSessionStable} },
		},
		"stale lease works": {
			lies: lies{toBridge: func(m wire.Message) (wire.Message, wire.Message) {
				if in, ok := m.(wire.Input); ok && in.InputID == "stale" {
					return nil, wire.Accepted{ID: in.ID, InputID: in.InputID}
				}
				return m, nil
			}},
			flags: func(r story.Report) []bool { return []bool{r.StaleLeaseRejected} },
		},
		"input delivered twice": {
			lies: lies{toBridge: func(m wire.Message) (wire.Message, wire.Message) {
				if in, ok := m.(wire.Input); ok && in.InputID == "first-once" {
					in.InputID = "first-once-again"
					return in, nil
				}
				return m, nil
			}, toClient: func(m wire.Message) wire.Message {
				if a, ok := m.(wire.Accepted); ok && a.InputID == "first-once-again" {
					a.InputID, a.Duplicate = "first-once", true
					return a
				}
				return m
			}},
			flags: func(r story.Report) []bool { return []bool{r.ExactlyOnceInput} },
		},
		"dialog forgotten": {
			lies: lies{toClient: func(m wire.Message) wire.Message {
				switch m := m.(type) {
				case wire.Attached:
					m.Pending = nil
					return m
				case wire.Records:
					if m.Pending {
						return nil
					}
				}
				return m
			}},
			flags: func(r story.Report) []bool { return []bool{r.ExtensionUIAnsweredAfterAttach} },
		},
		"runtime replaced": {
			options: story.Options{BetweenDaemons: replaceSession},
			flags:   func(r story.Report) []bool { return []bool{r.SameRuntime} },
		},
		"session kept": {
			options: story.Options{KeepSession: true},
			flags:   func(r story.Report) []bool { return []bool{r.RunscContainerRemoved, r.NothingLeftBehind} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			rootonly.Test(t)
			t.Parallel()
			o := c.options
			o.Intercept = func(socket string) (string, error) { return startRelay(t, socket, c.lies), nil }
			report := tell(t, o)
			if report.Evidence.Before.PiSession == "" {
				t.Fatalf("the story did not get as far as the kill: %s", report.Error)
			}
			for i, flag := range c.flags(report) {
				if flag {
					t.Errorf("flag %d stayed true", i)
				}
			}
			if report.Verdict == story.VerdictProved {
				t.Error("the verdict says proved")
			}
		})
	}
}

// replaceSession ends the session and puts another in its place.
func replaceSession(ctx context.Context, s *harness.System, old wire.SessionInfo) error {
	b, err := client.DialBroker(ctx, s.BrokerSocket())
	if err != nil {
		return err
	}
	defer b.Close()
	if err := b.Delete(ctx, old.Session); err != nil {
		return err
	}
	info, err := b.Create(ctx, client.CreateOptions{Workspace: old.Workspace})
	if err != nil {
		return err
	}
	memory := filepath.Join(s.Prefix, "daemon", "memory.json")
	content, err := os.ReadFile(memory)
	if err != nil {
		return err
	}
	return os.WriteFile(memory, bytes.ReplaceAll(content, []byte(old.Session), []byte(info.Session)), 0o600)
}
