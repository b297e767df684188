package impatient

import (
	"net"
	"time"
)

// Reader reads from a connection, under a deadline that it sets before each
// read. One goroutine uses it.
//
// It reads with read(2), which gives no control data: descriptors that a peer
// sends along are dropped by the kernel.
type Reader struct {
	*net.UnixConn
	// Idle is how long a peer may take to begin a message; 0 means forever.
	Idle time.Duration
	// Message is how long it may take from a message's first byte to its last,
	// however many reads that takes.
	Message time.Duration

	due time.Time // of the message that has begun; zero when none has
}

// Next tells that a message was taken from the connection, and whether some of
// the next one was read with it.
func (r *Reader) Next(begun bool) {
	r.due = time.Time{}
	if begun {
		r.due = time.Now().Add(r.Message)
	}
}

// Read implements io.Reader. What is late is an error that is a timeout.
func (r *Reader) Read(b []byte) (int, error) {
	deadline := r.due
	if deadline.IsZero() && r.Idle > 0 {
		deadline = time.Now().Add(r.Idle)
	}
	if err := r.SetReadDeadline(deadline); err != nil {
		return 0, err
	}
	n, err := r.UnixConn.Read(b)
	if n > 0 && r.due.IsZero() {
		r.due = time.Now().Add(r.Message)
	}
	return n, err
}
