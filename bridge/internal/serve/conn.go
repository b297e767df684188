package serve

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/session"
	"git.jb.codes/jb/paseo-sandbox/shared/impatient"
	"git.jb.codes/jb/paseo-sandbox/shared/peercred"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// maxWaiting is how many requests of one connection may wait for the broker or
// the agent; others are answered in the meantime.
const maxWaiting = 16

// conn is one connection. Its reader goroutine handles requests, its writer
// goroutine sends answers and records.
type conn struct {
	server *Server
	nc     *net.UnixConn
	peer   peercred.Peer
	in     *impatient.Reader
	wire   *wire.Conn
	queue  *queue
	gone   chan struct{} // closed when the writer has ended
	waits  sync.WaitGroup
	slots  chan struct{}

	// Of the reader alone:
	client *session.Client

	// staged is the reader's too, except that Fence empties it.
	staged staged
}

func newConn(s *Server, nc *net.UnixConn, peer peercred.Peer) *conn {
	in := &impatient.Reader{UnixConn: nc, Idle: helloTimeout, Message: s.message}
	return &conn{
		server: s, nc: nc, peer: peer, in: in, wire: wire.NewConn(in, wire.MaxBridgeFrame), queue: newQueue(),
		gone: make(chan struct{}), slots: make(chan struct{}, maxWaiting),
	}
}

// run serves the connection to its end.
func (c *conn) run() {
	defer c.server.forget(c)
	if err := c.nc.SetWriteBuffer(sendBuffer); err != nil {
		c.server.log.Warn("send_buffer_unset", "error", err.Error())
	}
	writerDone := make(chan struct{})
	hello := make(chan int, 1)
	go func() {
		defer close(writerDone)
		newWriter(c).run(hello)
	}()
	c.read(hello)
	if c.client != nil {
		c.server.session.Detach(c.client)
	}
	c.queue.push(item{last: true})
	<-writerDone
	c.waits.Wait()
}

// Wake implements session.Peer.
func (c *conn) Wake() { signal(c.queue.wake) }

// Fence implements session.Peer.
func (c *conn) Fence(generation uint64) {
	c.staged.drop()
	c.send(wire.Fenced{Generation: generation})
}

func (c *conn) send(m wire.Message) { c.queue.push(item{message: m}) }

// fail answers a request with an error.
func (c *conn) fail(id uint64, err error) { c.send(asError(err).ToMessage(id)) }

// fatal answers with an error and ends the connection.
func (c *conn) fatal(id uint64, err error) {
	c.queue.push(item{message: asError(err).ToMessage(id), last: true})
}

// asError returns the error that a client may see. Causes stay in the log.
func asError(err error) *wire.Error {
	var e *wire.Error
	if errors.As(err, &e) {
		return e
	}
	return &wire.Error{
		Code:    wire.CodeInternal,
		Message: "the bridge could not do it",
		Advice:  "look at the bridge's log",
		Err:     err,
	}
}

// read handles requests until the connection can't go on.
func (c *conn) read(hello chan<- int) {
	limit, err := c.greet()
	c.in.Idle = 0
	hello <- limit
	if err != nil {
		c.end(0, err)
		return
	}
	for c.waitForSpace() {
		c.in.Next(c.wire.Buffered() > 0)
		m, id, err := c.wire.ReadRequest(wire.BridgeRequests)
		if c.client != nil && !wire.Fatal(err) {
			c.client.Heard()
		}
		switch {
		case err == nil:
			if err := c.handle(m); err != nil {
				c.fatal(id, err)
				return
			}
		case wire.Fatal(err):
			c.end(id, err)
			return
		default:
			c.fail(id, err)
		}
	}
}

// end says goodbye after a failed read: a violation of the protocol is told,
// the end of the connection has nobody to tell.
func (c *conn) end(id uint64, err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = &wire.Error{Code: wire.CodeTimeout, Message: "the connection said nothing, or stopped in the middle of a message", Advice: "connect again, and send whole messages", Err: err}
	}
	var e *wire.Error
	if errors.As(err, &e) {
		c.server.log.Warn("protocol_error", "code", string(e.Code), "error", e.Error())
		c.fatal(id, e)
	}
}

func (c *conn) waitForSpace() bool {
	for c.queue.full() {
		select {
		case <-c.queue.space:
		case <-c.gone:
			return false
		}
	}
	return true
}

// greet exchanges hellos and returns the largest frame that the client takes.
func (c *conn) greet() (limit int, err error) {
	limit = wire.MinPeerFrame
	m, _, err := c.wire.ReadRequest(wire.BridgeRequests)
	if err != nil {
		return limit, err
	}
	hello, ok := m.(wire.Hello)
	if !ok {
		return limit, &wire.Error{
			Code:    wire.CodeHelloRequired,
			Message: fmt.Sprintf("the first message is %q, not a hello", m.Kind()),
			Advice:  "send hello first and wait for the answer",
		}
	}
	if hello.Protocol != wire.ProtocolBridge {
		return limit, &wire.Error{
			Code:    wire.CodeInvalidMessage,
			Message: fmt.Sprintf("this socket speaks %q, not %q", wire.ProtocolBridge, hello.Protocol),
			Advice:  "check which socket this is",
		}
	}
	if !slices.Contains(hello.Versions, wire.Version) {
		return limit, &wire.Error{
			Code:    wire.CodeUnsupportedVersion,
			Message: fmt.Sprintf("the client speaks the versions %v, the bridge %d", hello.Versions, wire.Version),
			Advice:  "use a client and a broker of one release",
		}
	}
	limit = int(min(hello.MaxFrame, wire.MaxBridgeFrame))
	c.send(wire.Hello{Protocol: wire.ProtocolBridge, Versions: []uint64{wire.Version}, MaxFrame: wire.MaxBridgeFrame})
	return limit, nil
}
