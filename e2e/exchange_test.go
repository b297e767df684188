package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// exchange is a daemon that loses its connection again and again: it attaches
// at its cursor, sends what was not accepted under the same id, and keeps what
// it receives.
type exchange struct {
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
func (c *exchange) run(ctx context.Context, progress func(received int)) error {
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

func (c *exchange) connection(ctx context.Context, progress func(int)) error {
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

func (c *exchange) send(ctx context.Context, s *client.Session) error {
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

func (c *exchange) receive(ctx context.Context, s *client.Session, progress func(int)) error {
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
