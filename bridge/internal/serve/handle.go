package serve

import (
	"fmt"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// handle serves one request. An error ends the connection.
func (c *conn) handle(m wire.Message) error {
	switch m := m.(type) {
	case wire.Attach:
		c.attach(m)
	case wire.Ping:
		c.send(wire.Pong{ID: m.ID})
	case wire.Inspect:
		c.send(c.server.session.Inspect(m.ID))
	case wire.Input:
		return c.input(m)
	case wire.Ack:
		if c.attached(m.ID) {
			sequence, err := c.server.session.Ack(c.client, m.Lease, m.Cursor)
			c.answer(m.ID, wire.Acked{ID: m.ID, Sequence: sequence}, err)
		}
	case wire.Release:
		if c.attached(m.ID) {
			c.release(m)
		}
	case wire.Terminate:
		if c.attached(m.ID) {
			grace := time.Duration(m.GraceMillis) * time.Millisecond
			c.answer(m.ID, wire.Done{ID: m.ID}, c.server.session.Terminate(c.client, m.Lease, grace))
		}
	case wire.Signal:
		if c.attached(m.ID) {
			c.later(m.ID, func() error { return c.server.session.Signal(c.client, m.Lease, m.Signal) })
		}
	case wire.CloseInput:
		if c.attached(m.ID) {
			c.closeInput(m)
		}
	case wire.Hello:
		return &wire.Error{
			Code:    wire.CodeInvalidMessage,
			Message: "hello was said before",
			Advice:  "say hello once on each connection",
		}
	default:
		return &wire.Error{
			Code:    wire.CodeUnknownMessage,
			Message: fmt.Sprintf("the bridge has no answer to %q", m.Kind()),
			Advice:  "use a client and a broker of one release",
		}
	}
	return nil
}

func (c *conn) answer(id uint64, m wire.Message, err error) {
	if err != nil {
		c.logFailure(err)
		c.fail(id, err)
		return
	}
	c.send(m)
}

// logFailure keeps the cause of what is the bridge's fault, which the client
// does not get to see.
func (c *conn) logFailure(err error) {
	switch wire.CodeOf(err) {
	case wire.CodeInternal, wire.CodeStorageFull:
		c.server.log.Error("request_failed", "error", err.Error())
	}
}

func (c *conn) attached(id uint64) bool {
	if c.client == nil {
		c.fail(id, notAttached())
	}
	return c.client != nil
}

func notAttached() *wire.Error {
	return &wire.Error{
		Code:    wire.CodeNotAttached,
		Message: "this connection is not attached to the session",
		Advice:  "send attach first",
	}
}

func (c *conn) attach(m wire.Attach) {
	if c.client != nil {
		c.fail(m.ID, &wire.Error{
			Code:    wire.CodeAlreadyAttached,
			Message: "this connection is attached already",
			Advice:  "open another connection for another attachment",
		})
		return
	}
	client, attached, next, err := c.server.session.Attach(c, m)
	if err != nil {
		c.answer(m.ID, nil, err)
		return
	}
	c.client = client
	c.server.log.Info("attached", "mode", string(m.Mode), "client", m.Client, "generation", attached.Generation, "next", next)
	c.queue.push(item{attach: &attachment{client: client, next: next, answer: attached}})
}

func (c *conn) release(m wire.Release) {
	err := c.server.session.Release(c.client, m.Lease)
	if err == nil {
		c.staged.drop()
	}
	c.answer(m.ID, wire.Done{ID: m.ID}, err)
}

// later answers a request that waits for others, while the connection goes on.
func (c *conn) later(id uint64, do func() error) {
	select {
	case c.slots <- struct{}{}:
	default:
		c.fail(id, &wire.Error{
			Code:    wire.CodeTooManyRequests,
			Message: fmt.Sprintf("%d requests of this connection are waiting", maxWaiting),
			Advice:  "wait for their answers",
		})
		return
	}
	c.waits.Go(func() {
		defer func() { <-c.slots }()
		c.answer(id, wire.Done{ID: id}, do())
	})
}

func (c *conn) closeInput(m wire.CloseInput) {
	drained, err := c.server.session.CloseInput(c.client, m.Lease)
	if err != nil {
		c.answer(m.ID, nil, err)
		return
	}
	c.later(m.ID, func() error {
		select {
		case <-drained:
			return c.server.session.InputClosed()
		case <-c.gone:
			return nil
		}
	})
}
