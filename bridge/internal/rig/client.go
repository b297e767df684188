package rig

import (
	"bytes"
	"fmt"
	"net"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Record is a whole record, as a client puts it together.
type Record struct {
	Sequence uint64
	Stream   wire.Stream
	Flags    wire.Flags
	Data     []byte
	Pending  bool
}

// Client is a plain client. One goroutine may use it.
type Client struct {
	t        testing.TB
	NC       *net.UnixConn
	Conn     *wire.Conn
	id       uint64
	Attached wire.Attached
	// Records holds the whole records that came while something else was
	// awaited.
	Records []Record
	// Fenced is set when the client was fenced.
	Fenced  *wire.Fenced
	partial map[uint64]*Record
	pending map[uint64]*Record
	answers map[uint64]wire.Message
}

// Dial connects without a hello.
func (r *Rig) Dial() *Client {
	r.T.Helper()
	nc, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: r.SocketPath(), Net: "unix"})
	if err != nil {
		r.T.Fatal(err)
	}
	c := newClient(r.T, nc)
	r.T.Cleanup(c.Close)
	return c
}

func newClient(t testing.TB, nc *net.UnixConn) *Client {
	return &Client{
		t: t, NC: nc, Conn: wire.NewConn(nc, wire.MaxBridgeFrame),
		partial: make(map[uint64]*Record), pending: make(map[uint64]*Record), answers: make(map[uint64]wire.Message),
	}
}

// Connect connects and exchanges hellos.
func (r *Rig) Connect() *Client {
	r.T.Helper()
	c := r.Dial()
	c.Send(wire.Hello{Protocol: wire.ProtocolBridge, Versions: []uint64{wire.Version}, MaxFrame: wire.MaxBridgeFrame})
	if m, ok := c.Read().(wire.Hello); !ok || len(m.Versions) != 1 || m.Versions[0] != wire.Version {
		r.T.Fatalf("the bridge answered the hello with %+v", m)
	}
	return c
}

// Writer attaches a writer at the oldest record.
func (r *Rig) Writer() *Client {
	r.T.Helper()
	return r.Attach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromOldest, Client: "test"})
}

// Observer attaches an observer.
func (r *Rig) Observer(from wire.From) *Client {
	r.T.Helper()
	return r.Attach(wire.Attach{Mode: wire.ModeObserver, From: from})
}

// Attach connects and attaches.
func (r *Rig) Attach(m wire.Attach) *Client {
	r.T.Helper()
	c := r.Connect()
	if e := c.TryAttach(m); e != nil {
		r.T.Fatalf("attach: %v", e)
	}
	return c
}

// TryAttach attaches and returns the bridge's error.
func (c *Client) TryAttach(m wire.Attach) *wire.Error {
	c.t.Helper()
	m.ID = c.NextID()
	answer, e := c.Ask(m.ID, m)
	if e != nil {
		return e
	}
	attached, ok := answer.(wire.Attached)
	if !ok {
		c.t.Fatalf("attach was answered with %+v", answer)
	}
	c.Attached = attached
	return nil
}

// Close closes the connection.
func (c *Client) Close() { c.NC.Close() }

// NextID returns a fresh request id.
func (c *Client) NextID() uint64 {
	c.id++
	return c.id
}

// Send sends a message.
func (c *Client) Send(m wire.Message) {
	c.t.Helper()
	if err := c.NC.SetWriteDeadline(time.Now().Add(Timeout)); err != nil {
		c.t.Fatal(err)
	}
	if err := c.Conn.WriteMessage(m); err != nil {
		c.t.Fatalf("send %s: %v", m.Kind(), err)
	}
}

// TryRead reads one message.
func (c *Client) TryRead() (wire.Message, error) {
	if err := c.NC.SetReadDeadline(time.Now().Add(Timeout)); err != nil {
		return nil, err
	}
	return c.Conn.ReadMessage(wire.BridgeReplies)
}

// Read reads one message; the test fails when there is none.
func (c *Client) Read() wire.Message {
	c.t.Helper()
	m, err := c.TryRead()
	if err != nil {
		c.t.Fatalf("read: %v", err)
	}
	return m
}

// Ask sends a request and returns its answer or the bridge's error. Records
// that come before are kept.
func (c *Client) Ask(id uint64, m wire.Message) (wire.Message, *wire.Error) {
	c.t.Helper()
	c.Send(m)
	return c.Await(id)
}

// Await returns the answer to a request that was sent before.
func (c *Client) Await(id uint64) (wire.Message, *wire.Error) {
	c.t.Helper()
	for c.answers[id] == nil {
		if err := c.Step(); err != nil {
			c.t.Fatalf("wait for the answer to %d: %v", id, err)
		}
	}
	m := c.answers[id]
	delete(c.answers, id)
	if e, ok := m.(wire.ErrorMessage); ok {
		return nil, e.Err()
	}
	return m, nil
}

// Step reads one message and sorts it.
func (c *Client) Step() error {
	m, err := c.TryRead()
	if err != nil {
		return err
	}
	switch m := m.(type) {
	case wire.Records:
		for i := range m.Records {
			if err := c.collect(&m.Records[i], m.Pending); err != nil {
				return err
			}
		}
	case wire.Fenced:
		c.Fenced = &m
	case wire.ErrorMessage:
		if m.ID == 0 {
			return m.Err()
		}
		c.answers[m.ID] = m
	default:
		c.answers[idOf(m)] = m
	}
	return nil
}

func idOf(m wire.Message) uint64 {
	switch m := m.(type) {
	case wire.Attached:
		return m.ID
	case wire.Acked:
		return m.ID
	case wire.Accepted:
		return m.ID
	case wire.Done:
		return m.ID
	case wire.Status:
		return m.ID
	case wire.Pong:
		return m.ID
	}
	return 0
}

// collect puts fragments together.
func (c *Client) collect(r *wire.Record, pending bool) error {
	parts := c.partial
	if pending {
		parts = c.pending
	}
	p := parts[r.Sequence]
	if p == nil {
		p = &Record{Sequence: r.Sequence, Stream: r.Stream, Pending: pending}
		parts[r.Sequence] = p
	}
	if uint64(len(p.Data)) != r.Offset {
		return fmt.Errorf("a fragment of record %d at offset %d came where %d was due", r.Sequence, r.Offset, len(p.Data))
	}
	p.Data = append(p.Data, r.Data...)
	if r.Flags&wire.FlagMore != 0 {
		return nil
	}
	p.Flags = r.Flags
	delete(parts, r.Sequence)
	c.Records = append(c.Records, *p)
	return nil
}

// Next returns the next record that is no pending one.
func (c *Client) Next() Record {
	c.t.Helper()
	for {
		for i, r := range c.Records {
			if !r.Pending {
				c.Records = append(c.Records[:i:i], c.Records[i+1:]...)
				return r
			}
		}
		if err := c.Step(); err != nil {
			c.t.Fatalf("wait for a record: %v", err)
		}
	}
}

// Expect reads one record and compares its bytes.
func (c *Client) Expect(stream wire.Stream, data []byte) Record {
	c.t.Helper()
	r := c.Next()
	if r.Stream != stream || !bytes.Equal(r.Data, data) {
		c.t.Fatalf("record %d is %d bytes of stream %d (%.60q), want %d bytes of stream %d (%.60q)", r.Sequence, len(r.Data), r.Stream, r.Data, len(data), stream, data)
	}
	return r
}

// Ack acknowledges and returns the answer.
func (c *Client) Ack(sequence uint64) (uint64, *wire.Error) {
	c.t.Helper()
	id := c.NextID()
	m, e := c.Ask(id, wire.Ack{ID: id, Lease: c.Attached.Lease, Cursor: wire.Cursor{Epoch: c.Attached.Epoch, Sequence: sequence}})
	if e != nil {
		return 0, e
	}
	return m.(wire.Acked).Sequence, nil
}

// SendInput sends an input in fragments and returns the id of the answer.
func (c *Client) SendInput(inputID string, data []byte) uint64 {
	c.t.Helper()
	if err := c.NC.SetWriteDeadline(time.Now().Add(Timeout)); err != nil {
		c.t.Fatal(err)
	}
	if err := c.TrySendInput(&c.id, inputID, data); err != nil {
		c.t.Fatalf("send input %s: %v", inputID, err)
	}
	return c.id
}

// Input sends an input and returns whether it was a duplicate.
func (c *Client) Input(inputID string, data []byte) (duplicate bool, e *wire.Error) {
	c.t.Helper()
	m, e := c.Await(c.SendInput(inputID, data))
	if e != nil {
		return false, e
	}
	return m.(wire.Accepted).Duplicate, nil
}

// CloseInput closes the agent's input and waits for the answer.
func (c *Client) CloseInput() *wire.Error {
	c.t.Helper()
	id := c.NextID()
	_, e := c.Ask(id, wire.CloseInput{ID: id, Lease: c.Attached.Lease})
	return e
}

// Inspect returns the bridge's status.
func (c *Client) Inspect() wire.Status {
	c.t.Helper()
	id := c.NextID()
	m, e := c.Ask(id, wire.Inspect{ID: id})
	if e != nil {
		c.t.Fatalf("inspect: %v", e)
	}
	return m.(wire.Status)
}

// Connection connects and exchanges hellos like Connect, from any goroutine;
// it returns nil when that fails. The caller closes it.
func (r *Rig) Connection() *Client {
	nc, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: r.SocketPath(), Net: "unix"})
	if err != nil {
		return nil
	}
	c := newClient(r.T, nc)
	hello := wire.Hello{Protocol: wire.ProtocolBridge, Versions: []uint64{wire.Version}, MaxFrame: wire.MaxBridgeFrame}
	if c.Conn.WriteMessage(hello) == nil {
		if m, err := c.TryRead(); err == nil {
			if _, ok := m.(wire.Hello); ok {
				return c
			}
		}
	}
	c.Close()
	return nil
}

// Answer takes one answer that has come, in no order, or the bridge's error;
// nil when there is none.
func (c *Client) Answer() (wire.Message, *wire.Error) {
	for id, m := range c.answers {
		delete(c.answers, id)
		if e, ok := m.(wire.ErrorMessage); ok {
			return nil, e.Err()
		}
		return m, nil
	}
	return nil, nil
}

// TrySendInput sends an input in fragments, with ids that follow id.
func (c *Client) TrySendInput(id *uint64, inputID string, data []byte) error {
	for offset := 0; ; offset += wire.MaxFragment {
		*id++
		part := data[offset:]
		more := len(part) > wire.MaxFragment
		if more {
			part = part[:wire.MaxFragment]
		}
		m := wire.Input{ID: *id, Lease: c.Attached.Lease, InputID: inputID, Offset: uint64(offset), More: more, Data: part}
		if err := c.Conn.WriteMessage(m); err != nil || !more {
			return err
		}
	}
}
