package client

import (
	"bufio"
	"context"
	"net"
	"sync"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// link is one connection: it writes requests and hands each answer to the call
// that waits for it. Whoever made it runs one goroutine that reads from in,
// calls deliver and, at its end, finish.
type link struct {
	conn   *net.UnixConn
	in     *bufio.Reader
	target target
	// limit is the largest frame that the peer accepts.
	limit int

	// writing is held while a frame is written; out is its buffer.
	writing chan struct{}
	out     []byte

	mu     sync.Mutex
	lastID uint64
	calls  map[uint64]chan wire.Message
	err    error
	// done is closed when err is set; finished when the reader has ended.
	done     chan struct{}
	finished chan struct{}
	// owned are goroutines that end with the connection.
	owned sync.WaitGroup
}

// bound gives a context without a deadline one.
func bound(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

// interrupt makes set, a deadline setter of the connection, end what is blocked
// when ctx ends. stop ends that, waits for it, and clears the deadline.
func (l *link) interrupt(ctx context.Context, set func(time.Time) error) (stop func()) {
	ran := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(ran)
		set(time.Unix(1, 0))
	})
	return func() {
		if !cancel() {
			<-ran
		}
		set(time.Time{})
	}
}

// fail ends the connection; the first reason stays.
func (l *link) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = err
	close(l.done)
	l.conn.Close()
}

// failure is why the connection ended; call it after done is closed.
func (l *link) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// close ends the connection from this side and waits for the reader.
func (l *link) close() error {
	l.fail(errClosed)
	<-l.finished
	l.owned.Wait()
	return nil
}

// spawn runs a goroutine that ends with the connection, unless that has ended.
func (l *link) spawn(run func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.owned.Go(run)
	}
}

// begin registers a call. The channel gets its answer, once.
func (l *link) begin() (id uint64, answer <-chan wire.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastID++
	c := make(chan wire.Message, 1)
	l.calls[l.lastID] = c
	return l.lastID, c
}

// forget ends a call. An answer that comes later is dropped.
func (l *link) forget(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.calls, id)
}

// deliver hands an answer to its call. An answer to a call that was given up
// is dropped; one to a call that was never made is an error.
func (l *link) deliver(id uint64, m wire.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id == 0 || id > l.lastID {
		return violation(l.target.peer, "%s answers the request %d, which was not made", m.Kind(), id)
	}
	if c, ok := l.calls[id]; ok {
		delete(l.calls, id)
		c <- m
	}
	return nil
}

// write sends one message. When ctx ends it before the first byte, the
// connection lives on; when it ends it later, the connection ends.
func (l *link) write(ctx context.Context, what string, m wire.Message) error {
	select {
	case l.writing <- struct{}{}:
		defer func() { <-l.writing }()
	case <-l.done:
		return l.failure()
	case <-ctx.Done():
		return expired(ctx, what)
	}
	frame, err := wire.AppendMessageFrame(l.out[:0], m, l.limit)
	if err != nil {
		return err
	}
	l.out = frame
	stop := l.interrupt(ctx, l.conn.SetWriteDeadline)
	n, err := l.conn.Write(frame)
	stop()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && n == 0:
		return expired(ctx, what)
	case ctx.Err() != nil:
		l.fail(expired(ctx, what))
		return l.failure()
	}
	// The peer is gone. What it said before tells more than a broken pipe, so
	// the reader gets a moment to find it.
	select {
	case <-l.done:
	case <-time.After(lastWords):
	case <-ctx.Done():
	}
	l.fail(lost(l.target.peer, err))
	return l.failure()
}

// lastWords is how long a failed write waits for the reader.
const lastWords = time.Second

// await waits for the answer of a call.
func (l *link) await(ctx context.Context, what string, answer <-chan wire.Message) (wire.Message, error) {
	select {
	case m := <-answer:
		return refusal(m)
	case <-ctx.Done():
		return nil, expired(ctx, what)
	case <-l.done:
	}
	// The answer may have come together with the end.
	select {
	case m := <-answer:
		return refusal(m)
	default:
		return nil, l.failure()
	}
}

func refusal(m wire.Message) (wire.Message, error) {
	if e, ok := m.(wire.ErrorMessage); ok {
		return nil, e.Err()
	}
	return m, nil
}

// call sends the request that build makes and waits for its answer, of type T.
func call[T wire.Message](ctx context.Context, l *link, what string, build func(id uint64) wire.Message) (T, error) {
	var none T
	id, answer := l.begin()
	defer l.forget(id)
	if err := l.write(ctx, what, build(id)); err != nil {
		return none, err
	}
	m, err := l.await(ctx, what, answer)
	if err != nil {
		return none, err
	}
	return answerAs[T](l, what, m)
}

// answerAs ends the connection when the answer has another type.
func answerAs[T wire.Message](l *link, what string, m wire.Message) (T, error) {
	t, ok := m.(T)
	if !ok {
		err := violation(l.target.peer, "%s was answered with %s", what, m.Kind())
		l.fail(err)
		return t, err
	}
	return t, nil
}
