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

// Link is the connection. Its methods may be called concurrently.
type Link struct {
	conn *net.UnixConn
	done chan struct{}

	mu      sync.Mutex
	nextID  uint64
	waiting map[uint64]chan wire.Message
	down    bool
}

// Receive reads the Configure and its descriptors, which are the caller's from
// then on, and starts the link. It takes ownership of conn, also when it fails.
func Receive(conn *net.UnixConn) (*Link, wire.Configure, []int, error) {
	c, fds, err := receive(conn)
	if err != nil {
		conn.Close()
		return nil, wire.Configure{}, nil, err
	}
	l := &Link{conn: conn, done: make(chan struct{}), waiting: make(map[uint64]chan wire.Message)}
	go l.read()
	return l, c, fds, nil
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

func (l *Link) read() {
	defer close(l.done)
	for {
		payload, fds, err := fdpass.Receive(l.conn, wire.MaxCustodyMessage)
		if err != nil {
			l.fail()
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

// fail marks the link as down and releases everyone who waits.
func (l *Link) fail() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for id, c := range l.waiting {
		delete(l.waiting, id)
		close(c)
	}
}

// Close ends the link and waits for its reader.
func (l *Link) Close() {
	l.conn.Close()
	<-l.done
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
	if err := l.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return unreachable(err)
	}
	if err := fdpass.Send(l.conn, payload); err != nil {
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
		cause = errors.New("its end of the socketpair is closed")
	}
	return &wire.Error{
		Code:    wire.CodeBrokerUnreachable,
		Message: "the bridge has lost its broker",
		Advice:  "start the broker again; output, input and replay go on without it",
		Err:     cause,
	}
}
