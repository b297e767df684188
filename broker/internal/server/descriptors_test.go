package server

import (
	"errors"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// Descriptors that a client sends along vanish; they don't pile up.
func TestSmuggledDescriptors(t *testing.T) {
	s := newSystem(t)
	p := s.hello("root")
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	payload, err := wire.Encode(wire.ListSessions{ID: 1})
	if err != nil {
		t.Fatal(err)
	}
	send := func() {
		t.Helper()
		if _, _, err := p.nc.WriteMsgUnix(wire.AppendFrame(nil, payload), unix.UnixRights(int(file.Fd()), int(file.Fd())), nil); err != nil {
			t.Fatal(err)
		}
		if m := p.read(); m.Kind() != "sessionList" {
			t.Fatalf("got %+v", m)
		}
	}
	send()
	before := countFDs(t)
	for range 50 {
		send()
	}
	if after := countFDs(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// R18: descriptors that a client sends, in any number and of any kind, before
// hello or after it, are gone with the message that brought them.
func TestManyDescriptors(t *testing.T) {
	s := newSystem(t)
	s.wantService()
	fds, goroutines := countFDs(t), runtime.NumGoroutine()
	const kernelMost = 253 // SCM_MAX_FD
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(null)
	many := make([]int, kernelMost)
	for i := range many {
		many[i] = null
	}
	for range 20 {
		p := s.dial("root")
		hello := helloFrame(t)
		if _, _, err := p.nc.WriteMsgUnix(hello[:1], unix.UnixRights(many...), nil); err != nil {
			t.Fatal(err)
		}
		p.nc.Write(hello[1:])
		if m := p.read(); m.Kind() != "hello" {
			t.Fatalf("got %+v", m)
		}
		circle(t, p.nc)
		if m := p.ask(wire.ListSessions{ID: 1}); m.Kind() != "sessionList" {
			t.Fatalf("got %+v", m)
		}
		p.nc.Close()
		silent := s.dial("user") // refused, with descriptors on their way
		silent.nc.WriteMsgUnix(hello, unix.UnixRights(many...), nil)
		silent.nc.Close()
	}
	unix.Close(null)
	flat(t, fds, goroutines)
	s.wantService()
}

// circle sends a request with a pair of sockets of which each is on its way
// through the other: only the kernel's collector frees them.
func circle(t *testing.T, to *net.UnixConn) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pair {
		if err := unix.Sendmsg(pair[i], []byte{1}, unix.UnixRights(pair[0], pair[1]), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := to.WriteMsgUnix(frameOf(t, wire.Describe{ID: 9}), unix.UnixRights(pair[:]...), nil); err != nil {
		t.Fatal(err)
	}
	unix.Close(pair[0])
	unix.Close(pair[1])
	c := wire.NewConn(to, wire.MaxBrokerFrame)
	if m, err := c.ReadMessage(wire.BrokerReplies); err != nil || m.Kind() != "deployment" {
		t.Fatalf("got %+v, %v", m, err)
	}
}

// Closing what a client sends can block: a TCP socket that lingers over data
// which nobody reads. It holds up that client alone.
func TestLingeringDescriptor(t *testing.T) {
	s := newSystem(t)
	fd := lingering(t)
	p := s.hello("root")
	_, _, err := p.nc.WriteMsgUnix(frameOf(t, wire.ListSessions{ID: 1}), unix.UnixRights(fd), nil)
	unix.Close(fd)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for range 5 {
		s.wantService()
	}
	others := time.Since(began)
	if m := p.read(); m.Kind() != "sessionList" {
		t.Errorf("got %+v", m)
	}
	t.Logf("others were served 5 times in %v; it had to wait %v", others, time.Since(began))
}

// lingering is a TCP socket whose last close takes 2 seconds.
func lingering(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	to := &unix.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	if err := unix.Connect(fd, to); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		err = unix.Sendto(fd, make([]byte, 64<<10), unix.MSG_DONTWAIT, nil)
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 2}); err != nil {
		t.Fatal(err)
	}
	return fd
}
