package server

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/cgroup"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/disk"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/session"
	"git.jb.codes/jb/paseo-sandbox/shared/peercred"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// FuzzConnection sends anything, after a hello or instead of one. The answers
// are well-formed, and the connection comes to its end.
func FuzzConnection(f *testing.F) {
	session0 := wire.SessionID("0198c0de00007000800000000000beef")
	for _, m := range []wire.Message{
		wire.Create{ID: 1, Workspace: "project"}, wire.InspectSession{ID: 2, Session: session0}, wire.ListSessions{ID: 3},
		wire.SignalSession{ID: 4, Session: session0, Signal: "KILL"}, wire.TerminateSession{ID: 5, Session: session0},
		wire.DeleteSession{ID: 6, Session: session0}, wire.Reload{ID: 7}, wire.Describe{ID: 8}, wire.Describe{ID: 9, Deployment: "one"},
	} {
		f.Add(true, true, frameOf(f, m))
		f.Add(true, false, frameOf(f, m))
	}
	f.Add(false, true, helloFrame(f))
	f.Add(true, true, append(helloFrame(f), 0, 0))
	f.Add(false, true, []byte{0xff, 0xff, 0xff, 0xff})
	l, err := layout.At(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	config := &registry.Config{Deployments: map[string]*registry.Deployment{"one": {ID: "one", PeerUIDs: []uint32{uint32(os.Geteuid())}}}}
	log := hclog.NewNullLogger()
	groups, err := cgroup.Open(l.CgroupParent())
	if err != nil {
		f.Fatal(err)
	}
	if err := os.MkdirAll(l.Var, 0o700); err != nil {
		f.Fatal(err)
	}
	clock, err := record.OpenClock(l.Clock(), "this", record.Monotonic)
	if err != nil {
		f.Fatal(err)
	}
	m := session.New(session.Config{Layout: l, Clock: clock, Registry: config, Groups: groups, Images: &disk.Images{}, Runtime: noRuntime{}, Log: log, Audit: audit.ToLog(log)})
	s := New(Config{Manager: m, Registry: config, Reload: func() error { return nil }, Limits: Defaults, Log: log})
	f.Cleanup(func() { s.Close() })
	f.Fuzz(func(t *testing.T, hello, client bool, data []byte) {
		e := &Endpoint{server: s, scope: session.Operator(), conns: make(map[*conn]struct{})}
		if client {
			e.scope = session.Of("one")
		}
		e.ctx, e.cancel = context.WithCancel(s.ctx)
		defer e.Close()
		if hello {
			data = append(helloFrame(t), data...)
		}
		converse(t, e, data)
	})
}

// converse sends the data on a connection and reads to its end.
func converse(t *testing.T, e *Endpoint, data []byte) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "end")
		nc, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		ends[i] = nc.(*net.UnixConn)
	}
	c := newConn(e, ends[0])
	if c.peer, err = peercred.Of(ends[0]); err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer c.end()
		c.serve()
	}()
	ends[1].SetDeadline(time.Now().Add(time.Minute))
	go func() {
		ends[1].Write(data) // it may be cut off
		ends[1].CloseWrite()
	}()
	in := wire.NewConn(ends[1], wire.MaxBrokerFrame)
	for err == nil {
		_, err = in.ReadMessage(wire.BrokerReplies)
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the connection ended with %v", err)
	}
	<-served
}
