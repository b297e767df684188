package server

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/session"
	"git.jb.codes/jb/paseo-sandbox/shared/impatient"
	"git.jb.codes/jb/paseo-sandbox/shared/peercred"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// conn is one client's connection. Requests are answered by id, in any order.
type conn struct {
	endpoint *Endpoint
	peer     peercred.Peer
	in       *impatient.Reader
	wire     *wire.Conn
	ctx      context.Context // ends when the client can't be told any more
	cancel   context.CancelFunc
	slots    chan struct{}
	requests sync.WaitGroup
	writing  sync.Mutex
}

func newConn(e *Endpoint, nc *net.UnixConn) *conn {
	l := e.server.Limits
	c := &conn{endpoint: e, in: &impatient.Reader{UnixConn: nc, Idle: l.Hello, Message: l.Message}, slots: make(chan struct{}, l.Requests)}
	c.wire = wire.NewConn(struct {
		io.Reader
		io.Writer
	}{c.in, writerFunc(c.write)}, wire.MaxBrokerFrame)
	c.ctx, c.cancel = context.WithCancel(e.ctx)
	return c
}

// end ends the connection, and the creations that it waits for.
func (c *conn) end() {
	c.cancel()
	c.in.Close()
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func (c *conn) write(b []byte) (int, error) {
	if err := c.in.SetWriteDeadline(time.Now().Add(c.endpoint.server.Limits.Write)); err != nil {
		return 0, err
	}
	return c.in.Write(b)
}

// next reads one request. The id is that of a refused one, if it has any.
func (c *conn) next() (wire.Message, uint64, error) {
	c.in.Next(c.wire.Buffered() > 0)
	return c.wire.ReadRequest(wire.BrokerRequests)
}

func (c *conn) serve() {
	if !c.hello() {
		return
	}
	c.in.Idle = c.endpoint.server.Limits.Idle
	// A client may close its side and still wait for answers. One that breaks
	// the protocol does not get any more, and its creations are given up.
	defer c.requests.Wait()
	for {
		m, id, err := c.next()
		if err == nil {
			if _, again := m.(wire.Hello); again {
				err = &wire.Error{Code: wire.CodeInvalidMessage, Message: "hello comes once", Advice: "send requests"}
			}
		}
		if err != nil {
			if c.refused(id, err) {
				continue
			}
			if !errors.Is(err, io.EOF) {
				c.cancel()
			}
			return
		}
		select {
		case c.slots <- struct{}{}:
		case <-c.ctx.Done():
			return
		}
		c.requests.Add(1)
		go func() {
			defer c.requests.Done()
			defer func() { <-c.slots }()
			c.handle(m, id)
		}()
	}
}

// hello agrees on the version.
func (c *conn) hello() bool {
	m, id, err := c.next()
	if err != nil {
		c.refused(id, err)
		return false
	}
	h, ok := m.(wire.Hello)
	switch {
	case !ok:
		err = &wire.Error{Code: wire.CodeHelloRequired, Message: "the first message is not hello", Advice: "send hello first"}
	case h.Protocol != wire.ProtocolBroker:
		err = &wire.Error{Code: wire.CodeUnsupportedVersion, Message: "this socket speaks " + string(wire.ProtocolBroker), Advice: "check which socket this is"}
	case !slices.Contains(h.Versions, wire.Version):
		err = &wire.Error{Code: wire.CodeUnsupportedVersion, Message: "no version of the client's is known here; there is version 1", Advice: "use a client of the broker's release"}
	}
	if err != nil {
		c.refused(id, err)
		return false
	}
	c.wire.LimitWrites(h.MaxFrame)
	return c.send(wire.Hello{Protocol: wire.ProtocolBroker, Versions: []uint64{wire.Version}, MaxFrame: wire.MaxBrokerFrame})
}

// refused tells the peer why its message was not taken, and reports whether
// the connection can go on.
func (c *conn) refused(id uint64, err error) bool {
	var timeout net.Error
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || c.ctx.Err() != nil:
		return false
	case errors.As(err, &timeout) && timeout.Timeout():
		err = &wire.Error{Code: wire.CodeTimeout, Message: "the connection was idle, or stopped in the middle of a message", Advice: "connect again when there is something to ask", Err: err}
	}
	var e *wire.Error
	if !errors.As(err, &e) {
		return false
	}
	c.audit(audit.Entry{Operation: "message"}, &wire.Error{Code: e.Code, Message: e.Message})
	return c.send(e.ToMessage(id)) && !wire.Fatal(err)
}

// refuse tells a peer that it is not let in.
func (c *conn) refuse(err error) { c.send(session.AsError(err).ToMessage(0)) }

// send writes one message and reports whether that went well.
func (c *conn) send(m wire.Message) bool {
	c.writing.Lock()
	defer c.writing.Unlock()
	err := c.wire.WriteMessage(m)
	if err != nil && c.ctx.Err() == nil {
		c.endpoint.server.Log.Warn("answer_unsent", "message", m.Kind(), "error", err.Error())
		c.end()
	}
	return err == nil
}
