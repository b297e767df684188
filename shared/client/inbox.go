package client

import (
	"context"
	"sync"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// batch holds the records of one frame.
type batch struct {
	// frame is what the records' data points into.
	frame   []byte
	records []Record
	// size is what the batch keeps in memory, in bytes.
	size int
}

// recordSize is about what one Record takes, in bytes.
const recordSize = 48

// spareBatches is how many used batches are kept for the reader, and idleAfter
// how long once no records come.
const (
	spareBatches = 6
	idleAfter    = 5 * time.Second
)

// inbox is the queue between a session's reader and the consumer of records.
// It is bounded: the reader asks for room before it reads a frame. While a
// call waits for its answer the bound is a higher one, because the answer may
// stand behind records in the socket.
type inbox struct {
	low, high int

	mu     sync.Mutex
	queue  []*batch
	size   int
	calls  int
	err    error
	spares []*batch
	// ready and room wake the consumer and the reader.
	ready, room chan struct{}
}

func newInbox(low, high int) *inbox {
	return &inbox{low: low, high: high, ready: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// awaitRoom returns once there is room, or false when done is closed.
func (b *inbox) awaitRoom(done <-chan struct{}) bool {
	for !b.hasRoom() {
		select {
		case <-b.room:
		case <-done:
			return false
		}
	}
	return true
}

func (b *inbox) hasRoom() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	limit := b.low
	if b.calls > 0 {
		limit = b.high
	}
	return b.size < limit
}

// enter and leave stand around a call.
func (b *inbox) enter() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	wake(b.room)
}

func (b *inbox) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls--
}

// full reports whether the reader stands still even for calls.
func (b *inbox) full() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.size >= b.high
}

// spare returns an empty batch, used before if there is one.
func (b *inbox) spare() *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.spares); n > 0 {
		s := b.spares[n-1]
		b.spares = b.spares[:n-1]
		return s
	}
	return new(batch)
}

// recycle takes a batch that nobody looks at any more.
func (b *inbox) recycle(s *batch) {
	clear(s.records)
	s.records, s.size = s.records[:0], 0
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.spares) < spareBatches {
		b.spares = append(b.spares, s)
	}
}

// put queues a batch. After finish it is dropped.
func (b *inbox) put(s *batch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return
	}
	b.queue = append(b.queue, s)
	b.size += s.size
	wake(b.ready)
}

// finish says how the records end, after those that are queued; the first
// end counts.
func (b *inbox) finish(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
	}
	wake(b.ready)
}

// abandon drops what is queued.
func (b *inbox) abandon(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue, b.size, b.err = nil, 0, err
	wake(b.ready)
}

// take waits for the next batch. There is one consumer.
func (b *inbox) take(ctx context.Context) (*batch, error) {
	for {
		s, err := b.poll()
		if s != nil || err != nil {
			return s, err
		}
		if err := b.awaitReady(ctx); err != nil {
			return nil, err
		}
	}
}

func (b *inbox) awaitReady(ctx context.Context) error {
	idle := time.NewTimer(idleAfter)
	defer idle.Stop()
	for {
		select {
		case <-b.ready:
			return nil
		case <-ctx.Done():
			return expired(ctx, "waiting for a record")
		case <-idle.C:
			b.dropSpares()
		}
	}
}

func (b *inbox) dropSpares() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spares = nil
}

func (b *inbox) poll() (*batch, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		return nil, b.err
	}
	s := b.queue[0]
	b.queue[0] = nil
	b.queue = b.queue[1:]
	b.size -= s.size
	wake(b.room)
	return s, nil
}

// addRecords decodes the frame's records through the stream into the batch.
func (s *batch) addRecords(st *stream, m wire.Records) error {
	records, owned, err := st.add(s.records[:0], m)
	s.records = records
	s.size = cap(s.frame) + owned + recordSize*cap(records)
	return err
}
