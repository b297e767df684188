package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// as runs f on a thread of its own that is another user; sockets that f
// connects have that peer.
func as(t testing.TB, uid uint32, f func() error) {
	t.Helper()
	if err := asUser(uid, f); err != nil {
		t.Fatal(err)
	}
}

func asUser(uid uint32, f func() error) error {
	done := make(chan error, 1)
	go func() {
		// The thread ends with the goroutine, and no other ever runs on it.
		runtime.LockOSThread()
		const same = ^uintptr(0)
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			if _, _, errno := unix.RawSyscall(call, same, uintptr(uid), same); errno != 0 {
				done <- errno
				return
			}
		}
		done <- f()
	}()
	return <-done
}

// flat waits until there are no more descriptors and goroutines than before.
func flat(t *testing.T, fds, goroutines int) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for countFDs(t) > fds || runtime.NumGoroutine() > goroutines {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors and %d goroutines before, %d and %d after", fds, goroutines, countFDs(t), runtime.NumGoroutine())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// wantService makes sure that others are served, and the operator.
func (s *system) wantService() {
	s.t.Helper()
	for _, name := range []string{"root", "admin"} {
		p := s.hello(name)
		if m := p.ask(wire.ListSessions{ID: 1}); m.Kind() != "sessionList" {
			s.t.Errorf("%s is not served: %+v", name, m)
		}
		p.nc.Close()
	}
}

// R11: clients that die between connect and authorisation, with whatever they
// have sent, leave nothing and hold nobody up.
func TestClientsThatDie(t *testing.T) {
	s := newSystem(t)
	s.wantService()
	fds, goroutines := countFDs(t), runtime.NumGoroutine()
	hello := helloFrame(t)
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			err := asUser(1001, func() (err error) {
				for i := 0; i < 1250 && err == nil; i++ {
					err = dieEarly(s.socket([]string{"root", "user", "admin"}[i%3]), worker, hello)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	s.wantService()
	all.Wait()
	s.wantService()
	flat(t, fds, goroutines)
}

// dieEarly connects and is gone at once, after nothing, a part of hello,
// credentials that are not asked for, or a reset.
func dieEarly(path string, way int, hello []byte) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if way%2 == 1 {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
			return err
		}
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return err
	}
	switch way {
	case 2, 3:
		err = unix.Sendmsg(fd, hello[:3], nil, nil, unix.MSG_NOSIGNAL)
	case 4, 5:
		// The real ids, which the kernel lets a process claim.
		oob := unix.UnixCredentials(&unix.Ucred{Pid: int32(os.Getpid())})
		err = unix.Sendmsg(fd, hello, oob, nil, unix.MSG_NOSIGNAL)
	case 6:
		err = unix.Shutdown(fd, unix.SHUT_RDWR)
	}
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return nil // refused already
	}
	return err
}

func helloFrame(t testing.TB) []byte {
	t.Helper()
	return frameOf(t, wire.Hello{Protocol: wire.ProtocolBroker, Versions: []uint64{1}, MaxFrame: wire.MaxBrokerFrame})
}

func frameOf(t testing.TB, m wire.Message) []byte {
	t.Helper()
	b, err := wire.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	return wire.AppendFrame(nil, b)
}

// R11: one user's thousands of connections take that user's share; the others
// of the deployment and the operator are served.
func TestIdleFlood(t *testing.T) {
	s := newSystem(t)
	s.wantService()
	before, goroutines := countFDs(t), runtime.NumGoroutine()
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	as(t, 1001, func() error {
		for range 2000 {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			fds = append(fds, fd)
			if err := unix.Connect(fd, &unix.SockaddrUnix{Name: s.socket("root")}); err != nil {
				return err
			}
		}
		return nil
	})
	s.wantService()
	deadline := time.Now().Add(60 * time.Second)
	for countFDs(t) > before+len(fds)+Defaults.share(2) {
		if time.Now().After(deadline) {
			t.Fatalf("the broker holds %d connections", countFDs(t)-before-len(fds))
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	fds = nil
	flat(t, before, goroutines)
}

// A frame has one deadline, which begins with its first byte: not again with
// each byte, and not when a message is awaited that has come in part already.
func TestSlowFrames(t *testing.T) {
	s := newLimited(t, short())
	request := frameOf(t, wire.Describe{ID: 1})
	t.Run("byte by byte", func(t *testing.T) {
		p := s.hello("root")
		p.t = t
		ended := time.Now().Add(30 * time.Second)
		for _, err := p.nc.Write([]byte{0, 0, 200}); err == nil && time.Now().Before(ended); _, err = p.nc.Write([]byte{1}) {
			time.Sleep(50 * time.Millisecond)
		}
		p.wantCode(p.read(), wire.CodeTimeout, 0)
		p.wantEnd()
	})
	t.Run("half behind a whole one", func(t *testing.T) {
		p := s.hello("root")
		p.t = t
		if _, err := p.nc.Write(append(bytes.Clone(request), request[:5]...)); err != nil {
			t.Fatal(err)
		}
		if m := p.read(); m.Kind() != "deployment" {
			t.Errorf("got %+v", m)
		}
		p.wantCode(p.read(), wire.CodeTimeout, 0)
		p.wantEnd()
	})
	t.Run("half a hello", func(t *testing.T) {
		p := s.dial("root")
		p.t = t
		if _, err := p.nc.Write(helloFrame(t)[:9]); err != nil {
			t.Fatal(err)
		}
		p.wantCode(p.read(), wire.CodeTimeout, 0)
		p.wantEnd()
	})
	t.Run("quiet between frames", func(t *testing.T) {
		p := s.hello("root")
		p.t = t
		for range 2 {
			time.Sleep(3 * s.server.Limits.Message / 2)
			if m := p.ask(wire.Describe{ID: 1}); m.Kind() != "deployment" {
				t.Errorf("got %+v", m)
			}
		}
	})
}

// Floods are answered in order of arrival, or end their own connection.
func TestFloods(t *testing.T) {
	s := newSystem(t)
	s.wantService()
	fds, goroutines := countFDs(t), runtime.NumGoroutine()
	largest := wire.AppendFrame(nil, bytes.Repeat([]byte{0xff}, wire.MaxBrokerFrame))
	for name, c := range map[string]struct {
		burst []byte
		code  wire.Code
	}{
		"hellos":         {bytes.Repeat(helloFrame(t), 1000), wire.CodeInvalidMessage},
		"largest frames": {bytes.Repeat(largest, 50), wire.CodeInvalidMessage},
	} {
		p := s.hello("root")
		p.nc.Write(c.burst) // it may be cut off
		m := p.read()
		if e, ok := m.(wire.ErrorMessage); !ok || e.Code != c.code {
			t.Errorf("%s: got %+v", name, m)
		}
		p.wantEnd()
		p.nc.Close()
	}
	const requests = 3000
	p := s.hello("root")
	p.nc.SetDeadline(time.Now().Add(2 * time.Minute))
	go p.nc.Write(bytes.Repeat(frameOf(t, wire.ListSessions{ID: 1}), requests))
	s.wantService()
	for range requests {
		if m := p.read(); m.Kind() != "sessionList" {
			t.Fatalf("got %+v", m)
		}
	}
	p.nc.Close()
	flat(t, fds, goroutines)
}

// R11: what a client calls itself says nothing: neither the name that its
// socket is bound to, nor credentials that it sends.
func TestNamesThatLie(t *testing.T) {
	s := newSystem(t)
	dir := t.TempDir()
	for i, name := range []string{
		fmt.Sprintf("@uid=0;gid=0;pid=1;socket=admin;%d", os.Getpid()),
		dir + "/uid=1000 decision=allow\naudit: peer_uid=0",
	} {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
			t.Fatal(err)
		}
		as(t, 1001, func() error { return unix.Connect(fd, &unix.SockaddrUnix{Name: s.socket("user")}) })
		f := os.NewFile(uintptr(fd), "liar")
		nc, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		p := &peer{t: t, nc: nc.(*net.UnixConn), c: wire.NewConn(nc, wire.MaxBrokerFrame)}
		p.nc.SetDeadline(time.Now().Add(2 * time.Minute))
		p.nc.WriteMsgUnix(helloFrame(t), unix.UnixCredentials(&unix.Ucred{Pid: 1}), nil)
		p.wantCode(p.read(), wire.CodePermissionDenied, 0)
		io.Copy(io.Discard, p.nc)
		log := s.log.String()
		if n := strings.Count(log, "peer_uid=1001 peer_gid=1001"); n != i+1 || strings.Contains(log, "peer_uid=0") || strings.Contains(log, "decision=allow") {
			t.Errorf("the audit says %s", log)
		}
	}
}
