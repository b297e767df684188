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
			c.answer(m.ID, wire.Done{ID: m.ID}, c.server.session.Release(c.client, m.Lease))
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
	c.queue.push(item{message: attached, attach: &attachment{client: client, next: next, pending: attached.Pending}})
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

// staged is an input whose fragments are coming in. Its bytes are dropped with
// the first reason to refuse it; the last fragment is answered.
type staged struct {
	id   string
	size uint64
	data []byte
	err  error
}

// input collects fragments and hands over the whole. A fragment out of order
// ends the connection.
func (c *conn) input(m wire.Input) error {
	st := c.staged
	if st == nil {
		st = &staged{id: m.InputID}
		c.staged = st
	}
	if m.InputID != st.id || m.Offset != st.size {
		return &wire.Error{
			Code:    wire.CodeInvalidMessage,
			Message: fmt.Sprintf("a fragment at offset %d of input %.128q came where offset %d of %.128q was due", m.Offset, m.InputID, st.size, st.id),
			Advice:  "send the fragments of one input in order, with no other input in between",
		}
	}
	st.size += uint64(len(m.Data))
	if st.err == nil {
		st.err = c.mayStage(m.Lease, st.size)
	}
	if st.err != nil {
		st.data = nil
	} else if m.Offset == 0 {
		st.data = m.Data
	} else {
		st.data = append(st.data, m.Data...)
	}
	if m.More {
		return nil
	}
	c.staged = nil
	duplicate, err := false, st.err
	if err == nil {
		duplicate, err = c.server.session.Input(c.client, m.Lease, st.id, st.data)
	}
	c.answer(m.ID, wire.Accepted{ID: m.ID, InputID: st.id, Duplicate: duplicate}, err)
	return nil
}

func (c *conn) mayStage(lease string, size uint64) error {
	if c.client == nil {
		return notAttached()
	}
	if err := c.server.session.MayWrite(c.client, lease); err != nil {
		return err
	}
	return c.server.session.CheckInputSize(int(size))
}
