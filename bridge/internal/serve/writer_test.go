package serve

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/peercred"
	"golang.org/x/sys/unix"
)

// stream makes a connected pair of stream sockets.
func stream(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "stream")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = c.(*net.UnixConn)
		t.Cleanup(func() { c.Close() })
	}
	return conns[0], conns[1]
}

// R47: a client that reads slowly is waited for, one that reads nothing is
// given up.
func TestSlowAndStoppedClient(t *testing.T) {
	const stall = 200 * time.Millisecond
	a, b := stream(t)
	if err := a.SetWriteBuffer(16 << 10); err != nil {
		t.Fatal(err)
	}
	w := newWriter(newConn(&Server{stall: stall, message: stall}, a, peercred.Peer{}))
	const size = 1 << 20
	read := make(chan int, 1)
	go func() {
		n, buf := 0, make([]byte, 32<<10)
		// Slower than one step in the stall time, and never silent for it.
		tick := time.NewTicker(stall / 4)
		defer tick.Stop()
		for n < size {
			<-tick.C
			m, err := b.Read(buf)
			if err != nil {
				break
			}
			n += m
		}
		read <- n
	}()
	start := time.Now()
	if err := w.write(make([]byte, size)); err != nil {
		t.Fatalf("a slow client was given up: %v", err)
	}
	if n := <-read; n != size || time.Since(start) < 2*stall {
		t.Fatalf("%d bytes in %s: the client was not slow", n, time.Since(start))
	}
	if err := w.write(make([]byte, size)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a stopped client: %v", err)
	}
	b.Close()
	if err := w.write(make([]byte, size)); err == nil || errors.Is(err, io.EOF) {
		t.Fatalf("a client that is gone: %v", err)
	}
}

// Answers beyond the limit keep the reader from reading on; taking them lets
// it go on.
func TestQueue(t *testing.T) {
	q := newQueue()
	for range maxQueued {
		if q.full() {
			t.Fatal("full too early")
		}
		q.push(item{})
	}
	if !q.full() {
		t.Fatal("not full")
	}
	if n := len(q.take()); n != maxQueued || q.full() {
		t.Fatalf("took %d", n)
	}
	select {
	case <-q.space:
	default:
		t.Fatal("the reader is not woken")
	}
}
