package serve

import (
	"fmt"
	"sync"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// staged is an input whose fragments are coming in. Its bytes are dropped with
// the first reason to refuse it; the last fragment is answered. The mutex is
// for Fence, which frees them at once; nothing else is called with it.
type staged struct {
	id   string
	size uint64 // 0 between inputs: fragments are not empty
	err  error

	mu      sync.Mutex
	data    []byte
	dropped bool
}

// add keeps a fragment, unless what came before was dropped.
func (st *staged) add(fragment []byte) {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.dropped:
	case st.data == nil:
		st.data = fragment
	default:
		st.data = append(st.data, fragment...)
	}
}

// drop frees what was kept. The rest of the input is not kept either, and its
// last fragment finds that the lease is stale.
func (st *staged) drop() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.data, st.dropped = nil, true
}

// take returns the whole input and is ready for the next one.
func (st *staged) take() (id string, data []byte, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	id, data, err = st.id, st.data, st.err
	st.id, st.size, st.err, st.data, st.dropped = "", 0, nil, nil, false
	return id, data, err
}

// input collects fragments and hands over the whole. A fragment out of order
// ends the connection.
func (c *conn) input(m wire.Input) error {
	st := &c.staged
	if st.size == 0 {
		st.id = m.InputID
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
		if st.err = c.mayStage(m.Lease, st.size); st.err != nil {
			st.drop()
		}
	}
	st.add(m.Data)
	if m.More {
		return nil
	}
	id, data, err := st.take()
	duplicate := false
	if err == nil {
		duplicate, err = c.server.session.Input(c.client, m.Lease, id, data)
	}
	c.answer(m.ID, wire.Accepted{ID: m.ID, InputID: id, Duplicate: duplicate}, err)
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
