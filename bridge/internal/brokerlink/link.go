package brokerlink

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

const (
	configureTimeout = 30 * time.Second
	sendTimeout      = 5 * time.Second
)

// Link is the connection to the broker: first the socketpair that the bridge
// was started with, then what a later broker makes (Serve). Its methods may be
// called concurrently.
type Link struct {
	readers sync.WaitGroup

	mu       sync.Mutex
	conn     *net.UnixConn
	listener *net.UnixListener // nil until Serve
	nextID   uint64
	waiting  map[uint64]chan wire.Message
	down     bool
	closed   bool
}

// Receive reads the Configure and its descriptors, which are the caller's from
// then on, and starts the link. It takes ownership of conn, also when it fails.
func Receive(conn *net.UnixConn) (*Link, wire.Configure, []int, error) {
	c, fds, err := receive(conn)
	if err != nil {
		conn.Close()
		return nil, wire.Configure{}, nil, err
	}
	l := &Link{waiting: make(map[uint64]chan wire.Message)}
	l.use(conn)
	return l, c, fds, nil
}

// use makes conn the link's connection and reports whether it did. The one
// before is given up: requests that wait on it fail.
func (l *Link) use(conn *net.UnixConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		conn.Close()
		return false
	}
	if l.conn != nil {
		l.conn.Close()
		l.release()
	}
	l.conn, l.down = conn, false
	l.readers.Add(1)
	go l.read(conn)
	return true
}

func receive(conn *net.UnixConn) (wire.Configure, []int, error) {
	if err := conn.SetReadDeadline(time.Now().Add(configureTimeout)); err != nil {
		return wire.Configure{}, nil, err
	}
	payload, fds, err := fdpass.Receive(conn, wire.MaxCustodyMessage)
	if err != nil {
		return wire.Configure{}, nil, fmt.Errorf("wait for the configuration: %w", err)
	}
	m, err := wire.Decode(wire.ToBridge, payload)
	c, ok := m.(wire.Configure)
	if err == nil && !ok {
		err = &wire.Error{
			Code:    wire.CodeInvalidMessage,
			Message: "the first message from the broker is not its configuration",
			Advice:  "check that broker and bridge are of one release",
		}
	}
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		fdpass.CloseAll(fds)
		return wire.Configure{}, nil, err
	}
	return c, fds, nil
}

func (l *Link) read(conn *net.UnixConn) {
	defer l.readers.Done()
	for {
		payload, fds, err := fdpass.Receive(conn, wire.MaxCustodyMessage)
		if err != nil {
			l.fail(conn)
			return
		}
		fdpass.CloseAll(fds)
		m, err := wire.Decode(wire.ToBridge, payload)
		if err != nil {
			// The broker is trusted more than the bridge; what can't be read
			// answers nothing, and the request runs into its deadline.
			continue
		}
		l.deliver(m)
	}
}

func (l *Link) deliver(m wire.Message) {
	var id uint64
	switch m := m.(type) {
	case wire.Done:
		id = m.ID
	case wire.ErrorMessage:
		id = m.ID
	case wire.BridgeExitReason:
		id = m.ID
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c, ok := l.waiting[id]; ok {
		delete(l.waiting, id)
		c <- m
	}
}

// fail marks the link as down, unless it has another connection by now.
func (l *Link) fail(conn *net.UnixConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == conn {
		l.down = true
		l.release()
	}
}

// release releases everyone who waits. The caller holds the lock.
func (l *Link) release() {
	for id, c := range l.waiting {
		delete(l.waiting, id)
		close(c)
	}
}

// Close ends the link, and waits for its readers and for Serve.
func (l *Link) Close() {
	l.mu.Lock()
	l.closed = true
	l.conn.Close()
	if l.listener != nil {
		l.listener.Close()
	}
	l.mu.Unlock()
	l.readers.Wait()
}

// Up reports whether the broker was there when last heard of.
func (l *Link) Up() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.down
}

// Tell sends a message that has no answer. Error: CodeBrokerUnreachable.
func (l *Link) Tell(m wire.Message) error {
	payload, err := wire.Encode(m)
	if err != nil {
		return err
	}
	return l.send(payload)
}

func (l *Link) send(payload []byte) error {
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if err := conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return unreachable(err)
	}
	if err := fdpass.Send(conn, payload); err != nil {
		return unreachable(err)
	}
	return nil
}

// Ask sends the request that makes returns for a fresh id, and waits for its
// answer, which is the broker's error if it is one. Errors:
// CodeBrokerUnreachable when the link is down, CodeTimeout.
func (l *Link) Ask(timeout time.Duration, make func(id uint64) wire.Message) (wire.Message, error) {
	id, answer, err := l.register()
	if err != nil {
		return nil, err
	}
	defer l.forget(id)
	if err := l.Tell(make(id)); err != nil {
		return nil, err
	}
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case m, ok := <-answer:
		if !ok {
			return nil, unreachable(nil)
		}
		if e, isError := m.(wire.ErrorMessage); isError {
			return nil, e.Err()
		}
		return m, nil
	case <-t.C:
		return nil, &wire.Error{
			Code:    wire.CodeTimeout,
			Message: fmt.Sprintf("the broker did not answer within %s", timeout),
			Advice:  "look at the broker's log; the session itself goes on",
		}
	}
}

func (l *Link) register() (uint64, chan wire.Message, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return 0, nil, unreachable(nil)
	}
	l.nextID++
	c := make(chan wire.Message, 1)
	l.waiting[l.nextID] = c
	return l.nextID, c, nil
}

func (l *Link) forget(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, id)
}

func unreachable(cause error) *wire.Error {
	if cause == nil {
		cause = errors.New("its end of the connection is closed")
	}
	return &wire.Error{
		Code:    wire.CodeBrokerUnreachable,
		Message: "the bridge has lost its broker",
		Advice:  "start the broker again; output, input and replay go on without it",
		Err:     cause,
	}
}
