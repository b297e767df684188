package serve

import (
	"sync"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/session"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// maxQueued is how many answers may wait for a client before no more of its
// requests are read.
const maxQueued = 256

// attachment says where a client's records start, and is answered when they do.
type attachment struct {
	client *session.Client
	next   uint64
	answer wire.Attached
}

// item is a message for the client, with what follows it.
type item struct {
	message wire.Message
	attach  *attachment // its answer is the message, and records start after it
	last    bool        // the connection is closed after the message
}

// queue holds answers, which go before records. push never blocks.
type queue struct {
	mu    sync.Mutex
	items []item
	wake  chan struct{} // the writer has something to look at
	space chan struct{} // the queue has become short again
}

func newQueue() *queue {
	return &queue{wake: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

func (q *queue) push(i item) {
	q.mu.Lock()
	q.items = append(q.items, i)
	q.mu.Unlock()
	signal(q.wake)
}

// take returns what is queued, for the writer.
func (q *queue) take() []item {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items = nil
	signal(q.space)
	return items
}

func (q *queue) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) >= maxQueued
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
