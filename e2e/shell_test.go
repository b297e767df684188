package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// shell is a shell in a sandbox that a test types into. Its profile's command
// must be a shell that reads its standard input.
type shell struct {
	t       *testing.T
	broker  *client.Broker
	session *client.Session
	info    wire.SessionInfo
	typed   int
	exit    *wire.Exit
}

func startShell(ctx context.Context, t *testing.T, s *harness.System, profile string) *shell {
	t.Helper()
	b, session, info := startSession(ctx, t, s, client.CreateOptions{Profile: profile})
	sh := &shell{t: t, broker: b, session: session, info: info}
	sh.send(ctx, "exec 2>&1")
	return sh
}

func (s *shell) send(ctx context.Context, script string) {
	s.t.Helper()
	s.typed++
	if _, err := s.session.Input(ctx, fmt.Sprint(s.typed), []byte(script+"\n")); err != nil {
		s.t.Fatal(err)
	}
}

// run returns what the script prints. After the shell's end it returns what was
// printed before that.
func (s *shell) run(ctx context.Context, script string) string {
	s.t.Helper()
	end := fmt.Sprintf("end of %d", s.typed+1)
	s.send(ctx, script+"\necho \""+end[:3]+"\"\""+end[3:]+"\"")
	var said strings.Builder
	for {
		r, err := s.session.Next(ctx)
		if err != nil {
			s.t.Fatalf("%v after %q", err, &said)
		}
		if r.Stream == wire.StreamExit {
			exit, err := wire.DecodeExit(r.Data)
			if err != nil {
				s.t.Fatal(err)
			}
			s.exit = &exit
			return said.String()
		}
		if before, ok := strings.CutSuffix(string(r.Data), end+"\n"); ok {
			said.WriteString(before)
			return said.String()
		}
		said.Write(r.Data)
		if r.Sequence%1000 == 0 {
			if err := s.session.Ack(ctx, r.Sequence); err != nil {
				s.t.Fatal(err)
			}
		}
	}
}

// delete ends the session, which must leave nothing.
func (s *shell) delete(ctx context.Context) {
	s.t.Helper()
	if err := s.broker.Delete(ctx, s.info.Session); err != nil {
		s.t.Error(err)
	}
}
