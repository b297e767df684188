package serve

import (
	"bytes"
	"errors"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// host is a server without a session, which is enough for hello and ping.
type host struct {
	t    *testing.T
	path string
}

func newHost(t *testing.T, message time.Duration, uids ...uint64) *host {
	t.Helper()
	dir, err := os.MkdirTemp("", "brg-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := &host{t: t, path: dir + "/s"}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: h.path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(h.path, 0o666)); err != nil {
		t.Fatal(err)
	}
	s := New(nil, l, uids, hclog.NewNullLogger())
	s.message = message
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run()
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	return h
}

type visitor struct {
	t  *testing.T
	nc *net.UnixConn
	c  *wire.Conn
}

// visit connects and says hello.
func (h *host) visit() *visitor {
	h.t.Helper()
	nc, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: h.path, Net: "unix"})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(60 * time.Second))
	v := &visitor{h.t, nc, wire.NewConn(nc, wire.MaxBridgeFrame)}
	nc.Write(frame(h.t, wire.Hello{Protocol: wire.ProtocolBridge, Versions: []uint64{1}, MaxFrame: wire.MaxBridgeFrame}))
	v.want("hello", "")
	return v
}

func (v *visitor) want(kind string, code wire.Code) {
	v.t.Helper()
	m, err := v.c.ReadMessage(wire.BridgeReplies)
	if err != nil {
		v.t.Fatal(err)
	}
	if e, ok := m.(wire.ErrorMessage); m.Kind() != kind || ok && e.Code != code {
		v.t.Fatalf("got %+v, want %s %s", m, kind, code)
	}
}

func frame(t *testing.T, m wire.Message) []byte {
	t.Helper()
	b, err := wire.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	return wire.AppendFrame(nil, b)
}

// A message has one deadline, from its first byte; between messages a client
// may be quiet for as long as it likes.
func TestSlowMessages(t *testing.T) {
	h := newHost(t, time.Second, uint64(os.Getuid()))
	ping := frame(t, wire.Ping{ID: 1})
	half := h.visit()
	half.nc.Write(append(bytes.Clone(ping), ping[:5]...))
	half.want("pong", "")
	half.want("error", wire.CodeTimeout)

	slow := h.visit()
	end := time.Now().Add(30 * time.Second)
	for _, err := slow.nc.Write([]byte{0, 0, 200}); err == nil && time.Now().Before(end); _, err = slow.nc.Write([]byte{1}) {
		time.Sleep(50 * time.Millisecond)
	}
	slow.want("error", wire.CodeTimeout)

	quiet := h.visit()
	time.Sleep(1500 * time.Millisecond) // longer than a message may take
	quiet.nc.Write(ping)
	quiet.want("pong", "")
}

// R47: one user's connections take that user's share; another is served.
func TestShares(t *testing.T) {
	rootonly.Test(t)
	h := newHost(t, messageTimeout, 1001, uint64(os.Getuid()))
	var fds []int
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread becomes another user's
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 1001, ^uintptr(0)); errno != 0 {
			done <- errno
			return
		}
		for range 4 * MaxConnections {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				fds = append(fds, fd)
				err = unix.Connect(fd, &unix.SockaddrUnix{Name: h.path})
			}
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	err := <-done
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	v := h.visit()
	v.nc.Write(frame(t, wire.Ping{ID: 1}))
	v.want("pong", "")
}

// R18: descriptors that a client sends are gone with the bytes that brought
// them.
func TestSmuggledDescriptors(t *testing.T) {
	h := newHost(t, messageTimeout, uint64(os.Getuid()))
	v := h.visit()
	count := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := count()
	many := make([]int, 253) // SCM_MAX_FD
	for range 20 {
		if _, _, err := v.nc.WriteMsgUnix(frame(t, wire.Ping{ID: 1}), unix.UnixRights(many...), nil); err != nil {
			t.Fatal(err)
		}
		v.want("pong", "")
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
