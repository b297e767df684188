package storm

import (
	"context"
	"fmt"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// readLost ends a session whose pipes are lost, if it runs. Its daemon reads what
// was spooled, which it checks, up to the exit.
func (s *Storm) readLost(ctx context.Context, session *session) error {
	b, err := client.DialBroker(ctx, s.system.AdminSocket())
	if err != nil {
		return err
	}
	defer b.Close()
	if _, err := b.Terminate(ctx, session.info.Session, 0); err != nil {
		return err
	}
	if err := session.stop(ctx); err != nil {
		return err
	}
	l, err := session.ledger()
	if err != nil {
		return err
	}
	if l.Exit == nil || l.Exit.Reason != wire.ReasonTerminated && l.Exit.Reason != wire.ReasonUnknown || l.Verdict != nil {
		return fmt.Errorf("session %s was lost, and ended with %+v, verdict %+v", session.info.Session, l.Exit, l.Verdict)
	}
	return nil
}
