package clienttest

import (
	"fmt"
	"net"
	"sync"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// connection is one client of a session.
type connection struct {
	s     *Server
	h     *hosted
	conn  net.Conn
	quit  chan struct{}
	write sync.Mutex
	c     *wire.Conn
	lease string
	seen  uint64 // sent on this connection
	// staged is an input of which further fragments are to come.
	staged   []byte
	stagedID string
}

// bridge serves one connection to a session.
func (s *Server) bridge(h *hosted, conn net.Conn) {
	c := &connection{s: s, h: h, conn: conn, c: wire.NewConn(conn, wire.MaxBridgeFrame)}
	h.session.mu.Lock()
	killed := h.quit
	h.session.mu.Unlock()
	c.quit = make(chan struct{})
	var senders sync.WaitGroup
	senders.Go(func() {
		select {
		case <-killed:
		case <-s.quit:
		case <-c.quit:
		}
		conn.Close()
	})
	if greet(c.c, wire.BridgeRequests, wire.ProtocolBridge, wire.MaxBridgeFrame) {
		c.serve(&senders)
	}
	close(c.quit)
	senders.Wait()
	h.change(func() {
		if h.writer == c {
			h.writer = nil
		}
	})
}

func (c *connection) send(m wire.Message) error {
	c.write.Lock()
	defer c.write.Unlock()
	return c.c.WriteMessage(m)
}

func (c *connection) serve(senders *sync.WaitGroup) {
	for {
		m, id, err := c.c.ReadRequest(wire.BridgeRequests)
		if id == 0 {
			return
		}
		if a, ok := m.(wire.Attach); ok && err == nil {
			if err = c.attach(a, senders); err == nil {
				continue
			}
		}
		var reply wire.Message
		if err == nil {
			reply, err = c.answer(id, m)
		}
		if err != nil {
			e, ok := err.(*wire.Error)
			if !ok {
				return
			}
			reply = e.ToMessage(id)
		}
		if reply != nil && c.send(reply) != nil {
			return
		}
	}
}

func (c *connection) answer(id uint64, m wire.Message) (wire.Message, error) {
	switch m := m.(type) {
	case wire.Ping:
		return wire.Pong{ID: id}, nil
	case wire.Inspect:
		return c.status(id), nil
	case wire.Ack:
		return c.ack(m)
	case wire.Input:
		return c.input(m)
	case wire.CloseInput:
		return c.order(id, m.Lease, func() {
			c.h.change(func() { c.h.closed = true })
			c.h.await(c.quit, func() bool { return len(c.h.stdin) == 0 || c.h.exit != nil })
		})
	case wire.Signal:
		return c.order(id, m.Lease, func() { c.h.signal(m.Signal) })
	case wire.Terminate:
		return c.order(id, m.Lease, func() { c.terminate(time.Duration(m.GraceMillis) * time.Millisecond) })
	case wire.Release:
		return c.order(id, m.Lease, func() {
			c.h.change(func() { c.h.writer = nil })
			c.lease = ""
		})
	}
	return nil, fmt.Errorf("no answer to %s", m.Kind())
}

func (c *connection) terminate(grace time.Duration) {
	c.h.change(func() { c.h.closed = true })
	c.s.owned.Go(func() {
		late := make(chan struct{})
		timer := time.AfterFunc(grace, func() { close(late) })
		defer timer.Stop()
		if !c.h.await(late, func() bool { return c.h.exit != nil }) {
			c.s.end(c.h, grace, nil)
		}
	})
}

func (c *connection) order(id uint64, lease string, f func()) (wire.Message, error) {
	if err := c.check(lease); err != nil {
		return nil, err
	}
	f()
	return wire.Done{ID: id}, nil
}

func (c *connection) check(lease string) error {
	c.h.session.mu.Lock()
	defer c.h.session.mu.Unlock()
	if c.h.writer != c || lease == "" || lease != c.lease {
		return &wire.Error{Code: wire.CodeStaleWriter, Message: "this lease is not the writer's", Advice: "attach again"}
	}
	return nil
}

func (c *connection) attach(m wire.Attach, senders *sync.WaitGroup) error {
	a := wire.Attached{ID: m.ID, Session: c.h.info.Session, Epoch: c.h.info.Epoch}
	var from uint64
	var old *connection
	var shown []wire.Record
	var err *wire.Error
	c.h.change(func() {
		next := uint64(len(c.h.records)) + 1
		if from, err = c.from(m, next); err != nil {
			return
		}
		if m.Mode == wire.ModeWriter {
			if c.h.writer != nil && !m.Takeover {
				err = &wire.Error{Code: wire.CodeWriterAlreadyAttached, Message: "a writer is attached", Advice: "attach as an observer, or take over"}
				return
			}
			old, c.h.writer = c.h.writer, c
			c.h.generation++
			c.lease = fmt.Sprintf("lease-%d", c.h.generation)
		}
		a.Lease, a.Generation, a.NextSequence, a.LostBefore = c.lease, c.h.generation, next, c.h.floor+1
		a.Acked, a.InputClosed, a.Exit, a.Pending = c.h.floor, c.h.closed, c.h.exit, c.h.pending
		for _, p := range a.Pending {
			shown = append(shown, c.h.records[p.Sequence-1])
		}
	})
	if err != nil {
		return err
	}
	if old != nil {
		old.send(wire.Fenced{Generation: a.Generation})
	}
	c.seen = from - 1
	if c.send(a) != nil {
		return nil
	}
	for _, r := range shown {
		c.sendRecord(r, true)
	}
	senders.Go(func() { c.replay(from) })
	return nil
}

func (c *connection) from(m wire.Attach, next uint64) (uint64, *wire.Error) {
	switch {
	case m.From == wire.FromOldest:
		return c.h.floor + 1, nil
	case m.From == wire.FromLive:
		return next, nil
	case m.Cursor.Epoch != c.h.info.Epoch || m.Cursor.Sequence >= next:
		return 0, &wire.Error{Code: wire.CodeInvalidCursor, Message: "the cursor is of another session", Advice: "attach from the oldest record"}
	case m.Cursor.Sequence < c.h.floor:
		return 0, &wire.Error{Code: wire.CodeReplayGap, Message: "records are gone", Advice: "attach from the oldest record", LostBefore: c.h.floor + 1}
	}
	return m.Cursor.Sequence + 1, nil
}

// replay sends records from the sequence on until the exit or the end of the
// connection.
func (c *connection) replay(next uint64) {
	for {
		var batch []wire.Record
		if !c.h.await(c.quit, func() bool {
			batch = c.h.records[next-1:]
			return len(batch) > 0
		}) {
			return
		}
		for _, r := range batch {
			c.h.session.mu.Lock()
			c.seen = r.Sequence
			c.h.session.mu.Unlock()
			if c.sendRecord(r, false) != nil || r.Stream == wire.StreamExit {
				return
			}
			next = r.Sequence + 1
		}
	}
}

func (c *connection) sendRecord(r wire.Record, pending bool) error {
	rest := r.Data
	for {
		r.Data = rest[:min(len(rest), wire.MaxFragment)]
		rest = rest[len(r.Data):]
		if r.Flags &^= wire.FlagMore; len(rest) > 0 {
			r.Flags |= wire.FlagMore
		}
		if err := c.send(wire.Records{Pending: pending, Records: []wire.Record{r}}); err != nil || len(rest) == 0 {
			return err
		}
		r.Offset += uint64(len(r.Data))
	}
}

func (c *connection) ack(m wire.Ack) (wire.Message, error) {
	if err := c.check(m.Lease); err != nil {
		return nil, err
	}
	c.h.session.mu.Lock()
	defer c.h.session.mu.Unlock()
	if m.Cursor.Sequence > c.seen {
		return nil, &wire.Error{Code: wire.CodeInvalidAck, Message: "this was not sent", Advice: "acknowledge what was received"}
	}
	c.h.floor = max(c.h.floor, m.Cursor.Sequence)
	return wire.Acked{ID: m.ID, Sequence: c.h.floor}, nil
}

func (c *connection) input(m wire.Input) (wire.Message, error) {
	if m.Offset != uint64(len(c.staged)) || m.Offset > 0 && m.InputID != c.stagedID {
		return nil, fmt.Errorf("the fragment does not follow")
	}
	c.staged, c.stagedID = append(c.staged, m.Data...), m.InputID
	if m.More {
		return nil, nil
	}
	data := c.staged
	c.staged = nil
	if err := c.check(m.Lease); err != nil {
		return nil, err
	}
	duplicate, err := c.h.input(m.InputID, data)
	if err != nil {
		return nil, err
	}
	return wire.Accepted{ID: m.ID, InputID: m.InputID, Duplicate: duplicate}, nil
}

func (c *connection) status(id uint64) wire.Status {
	c.h.session.mu.Lock()
	defer c.h.session.mu.Unlock()
	return wire.Status{
		ID: id, Session: c.h.info.Session, Epoch: c.h.info.Epoch, BridgePID: 1, Generation: c.h.generation,
		HasWriter: c.h.writer != nil, NextSequence: uint64(len(c.h.records)) + 1, LostBefore: c.h.floor + 1, Acked: c.h.floor,
		InputAccepted: c.h.accepted, InputDelivered: c.h.delivered, SpoolLimit: 1 << 30,
		Framing: wire.FramingPi, Pending: c.h.pending, InputClosed: c.h.closed, Exit: c.h.exit,
	}
}
