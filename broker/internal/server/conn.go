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
	"git.jb.codes/jb/paseo-sandbox/shared/peercred"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

const (
	helloTimeout = 10 * time.Second
	// frameTimeout bounds the time from a frame's first bytes to its last.
	frameTimeout = 10 * time.Second
	idleTimeout  = time.Hour
	writeTimeout = 10 * time.Second
	// maxRequests is how many requests of one connection are worked on at a
	// time; further ones wait unread.
	maxRequests = 8
)

// conn is one client's connection. Requests are answered by id, in any order.
type conn struct {
	endpoint *endpoint
	peer     peercred.Peer
	in       *deadlineReader
	wire     *wire.Conn
	ctx      context.Context // ends when the client can't be told any more
	cancel   context.CancelFunc
	slots    chan struct{}
	requests sync.WaitGroup
	writing  sync.Mutex
}

func newConn(e *endpoint, nc *net.UnixConn) *conn {
	in := &deadlineReader{UnixConn: nc, idle: helloTimeout}
	c := &conn{endpoint: e, in: in, wire: wire.NewConn(in, wire.MaxBrokerFrame), slots: make(chan struct{}, maxRequests)}
	c.ctx, c.cancel = context.WithCancel(e.server.ctx)
	return c
}

// deadlineReader lets a peer be idle, but not in the middle of a frame. It
// reads with read(2): descriptors that a peer sends along are dropped by the
// kernel.
type deadlineReader struct {
	*net.UnixConn
	idle  time.Duration
	begun bool
}

func (r *deadlineReader) Read(b []byte) (int, error) {
	limit := frameTimeout
	if !r.begun {
		limit = r.idle
	}
	if err := r.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return 0, err
	}
	n, err := r.UnixConn.Read(b)
	r.begun = r.begun || n > 0
	return n, err
}

func (r *deadlineReader) Write(b []byte) (int, error) {
	if err := r.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return r.UnixConn.Write(b)
}

// next reads one request. The id is that of a refused one, if it has any.
func (c *conn) next() (wire.Message, uint64, error) {
	c.in.begun = false
	return c.wire.ReadRequest(wire.BrokerRequests)
}

func (c *conn) serve() {
	if !c.hello() {
		return
	}
	c.in.idle = idleTimeout
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
		c.endpoint.server.log.Warn("answer_unsent", "message", m.Kind(), "error", err.Error())
		c.cancel()
		c.in.Close()
	}
	return err == nil
}
