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

// consumer is a daemon that loses its connection again and again: it attaches
// at its cursor, sends what was not accepted under the same id, and keeps what
// it receives.
type consumer struct {
	t      *testing.T
	socket string
	inputs [][]byte
	got    bytes.Buffer
	cursor wire.Cursor
	// next is the first input that was not accepted yet.
	next       int
	duplicates int
	exit       *wire.Exit
	// pace, if it is set, is asked before each input, and may wait.
	pace func(ctx context.Context, input int) error
}

// run goes on until the exit record, over as many connections as it takes.
func (c *consumer) run(ctx context.Context, progress func(received int)) error {
	for c.exit == nil {
		err := c.connection(ctx, progress)
		if c.exit != nil || ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		if code := wire.CodeOf(err); code != client.CodeConnectionLost && code != client.CodeSessionUnreachable && !errors.Is(err, io.EOF) {
			return err
		}
	}
	return nil
}

func (c *consumer) connection(ctx context.Context, progress func(int)) error {
	s, err := client.DialSession(ctx, c.socket)
	if err != nil {
		return err
	}
	defer s.Close()
	o := client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromOldest, Takeover: true}
	if c.cursor.Epoch != "" {
		o.From, o.Cursor = wire.FromCursor, &c.cursor
	}
	attached, err := s.Attach(ctx, o)
	if err != nil {
		return err
	}
	c.cursor.Epoch = attached.Epoch
	sending, stop := context.WithCancel(ctx)
	sent := make(chan error, 1)
	go func() { sent <- c.send(sending, s) }()
	err = c.receive(ctx, s, progress)
	stop()
	s.Close()
	return errors.Join(err, ignoreLost(<-sent))
}

func ignoreLost(err error) error {
	if code := wire.CodeOf(err); code == client.CodeConnectionLost || errors.Is(err, context.Canceled) || code == wire.CodeRuntimeNotWritable {
		return nil
	}
	return err
}

func (c *consumer) send(ctx context.Context, s *client.Session) error {
	for c.next < len(c.inputs) {
		if c.pace != nil {
			if err := c.pace(ctx, c.next); err != nil {
				return err
			}
		}
		duplicate, err := s.Input(ctx, fmt.Sprintf("input-%d", c.next), c.inputs[c.next])
		if err != nil {
			return err
		}
		if duplicate {
			c.duplicates++
		}
		c.next++
	}
	return s.CloseInput(ctx)
}

func (c *consumer) receive(ctx context.Context, s *client.Session, progress func(int)) error {
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
		if r.Sequence%64 == 0 {
			if err := s.Ack(ctx, r.Sequence); err != nil {
				return err
			}
		}
		progress(c.got.Len())
	}
}

// R33 R43 R48: a bridge that is killed again and again in the middle of work is
// replaced, and no byte is lost, repeated or reordered in either direction.
func TestKilledBridgeIsReplaced(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), deathsTimeout)
	defer cancel()
	s := startSmallSystem(t, harness.Options{Profiles: echoProfiles})
	b, first, info := startSession(ctx, t, s, client.CreateOptions{Profile: "stdout"})
	first.Close()
	c := &consumer{t: t, socket: b.SessionSocket(info)}
	var want bytes.Buffer
	for i := range 200 {
		input := bytes.Repeat(fmt.Appendf(nil, "%06d the quick brown fox jumps over the lazy dog\n", i), 1000)
		c.inputs = append(c.inputs, input)
		want.Write(input)
	}
	const kills = 4
	killed := 0
	pids := map[uint64]bool{}
	err := c.run(ctx, func(received int) {
		if killed == kills || received < (killed+1)*want.Len()/(kills+1) {
			return
		}
		killed++
		now, err := b.Inspect(ctx, info.Session)
		if err != nil {
			t.Fatal(err)
		}
		if pids[now.BridgePID] {
			t.Errorf("the broker still names the dead bridge %d", now.BridgePID)
		}
		pids[now.BridgePID] = true
		if err := syscall.Kill(int(now.BridgePID), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(c.got.Bytes(), want.Bytes()) {
		t.Errorf("the bytes differ: sent %d, got %d", want.Len(), c.got.Len())
	}
	if c.exit.Code != 0 || c.exit.InputDelivered != uint64(want.Len()) || killed != kills {
		t.Errorf("exit %+v after %d kills", c.exit, killed)
	}
	t.Logf("%d kills, %d inputs sent again", killed, c.duplicates)
	if err := b.Delete(ctx, info.Session); err != nil {
		t.Fatal(err)
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
