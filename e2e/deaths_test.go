package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// deathsTimeout bounds a test in which processes are killed.
const deathsTimeout = 3 * time.Minute

// consumer reads a session to its end, over as many connections as it takes.
type consumer struct {
	socket string
	got    bytes.Buffer
	cursor wire.Cursor
	exit   *wire.Exit
}

// run goes on until the exit record, over as many connections as it takes.
func (c *consumer) run(ctx context.Context) error {
	for c.exit == nil {
		err := c.connection(ctx)
		if c.exit != nil || ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		if code := wire.CodeOf(err); code != client.CodeConnectionLost && code != client.CodeSessionUnreachable && !errors.Is(err, io.EOF) {
			return err
		}
	}
	return nil
}

func (c *consumer) connection(ctx context.Context) error {
	s, err := client.DialSession(ctx, c.socket)
	if err != nil {
		return err
	}
	defer s.Close()
	o := client.AttachOptions{Mode: wire.ModeObserver, From: wire.FromOldest}
	if c.cursor.Epoch != "" {
		o.From, o.Cursor = wire.FromCursor, &c.cursor
	}
	attached, err := s.Attach(ctx, o)
	if err != nil {
		return err
	}
	c.cursor.Epoch = attached.Epoch
	for {
		r, err := s.Next(ctx)
		if err != nil {
			return err
		}
		if r.Sequence != c.cursor.Sequence+1 {
			return fmt.Errorf("record %d after %d", r.Sequence, c.cursor.Sequence)
		}
		c.cursor.Sequence = r.Sequence
		if r.Stream == wire.StreamExit {
			exit, err := wire.DecodeExit(r.Data)
			c.exit = &exit
			return err
		}
		c.got.Write(r.Data)
	}
}

// R33: a broker that is killed and started again finds its session, whose
// client noticed nothing, and ends it.
func TestSessionOutlivesItsBroker(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), deathsTimeout)
	defer cancel()
	s := startSmallSystem(t, harness.Options{Profiles: echoProfiles})
	_, session, info := startSession(ctx, t, s, client.CreateOptions{Profile: "stdout"})
	echoLine := func(id string) {
		t.Helper()
		if _, err := session.Input(ctx, id, []byte(id+"\n")); err != nil {
			t.Fatal(err)
		}
		if r, err := session.Next(ctx); err != nil || string(r.Data) != id+"\n" {
			t.Fatalf("got %q, %v", r.Data, err)
		}
	}
	for i, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		echoLine(fmt.Sprintf("before %d", i))
		if err := s.StopBroker(sig); err != nil {
			t.Fatal(err)
		}
		echoLine(fmt.Sprintf("without a broker %d", i))
		if err := s.StartBroker(ctx); err != nil {
			t.Fatal(err)
		}
		echoLine(fmt.Sprintf("after %d", i))
	}
	b, err := client.DialBroker(ctx, s.BrokerSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	now, err := b.Inspect(ctx, info.Session)
	if err != nil || now.State != wire.StateRunning || now.SandboxPID != info.SandboxPID || now.BridgePID != info.BridgePID {
		t.Errorf("the new broker says %+v, %v", now, err)
	}
	if now, err = b.Terminate(ctx, info.Session, 0); err != nil || now.State != wire.StateExited {
		t.Errorf("terminate: %+v, %v", now, err)
	}
	if err := b.Delete(ctx, info.Session); err != nil {
		t.Error(err)
	}
}
