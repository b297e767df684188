package impatient

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

func wantTimeout(t *testing.T, r *Reader) {
	t.Helper()
	if n, err := r.Read(make([]byte, 8)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %d, %v", n, err)
	}
}

func wantBytes(t *testing.T, r *Reader) {
	t.Helper()
	if n, err := r.Read(make([]byte, 8)); n == 0 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
}

// A message that has begun has one deadline, which further bytes do not move.
func TestMessage(t *testing.T) {
	a, b := pair(t)
	r := &Reader{UnixConn: a, Idle: time.Hour, Message: 300 * time.Millisecond}
	end := time.Now().Add(30 * time.Second)
	var err error
	for err == nil && time.Now().Before(end) {
		b.Write([]byte{1})
		_, err = r.Read(make([]byte, 1))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	r.Next(false)
	b.Write([]byte{1})
	wantBytes(t, r)
}

// One whose beginning was read with the one before has begun.
func TestBegun(t *testing.T) {
	a, _ := pair(t)
	r := &Reader{UnixConn: a, Idle: time.Hour, Message: 50 * time.Millisecond}
	r.Next(true)
	wantTimeout(t, r)
}

// Between messages the peer may be idle, as long as it may.
func TestIdle(t *testing.T) {
	a, b := pair(t)
	r := &Reader{UnixConn: a, Idle: 50 * time.Millisecond, Message: time.Hour}
	wantTimeout(t, r)
	r.Idle = 0
	r.Next(false)
	go func() {
		time.Sleep(200 * time.Millisecond) // longer than the idleness before
		b.Write([]byte{1})
	}()
	wantBytes(t, r)
}
