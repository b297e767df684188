package client

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/client/clienttest"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// R71: what keeps a client from its broker is named, and how to mend it.
func TestBrokerUnreachable(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for _, c := range []struct {
		name, path string
		code       wire.Code
		is         error
		advice     string
	}{
		{"missing", filepath.Join(dir, "none.sock"), wire.CodeBrokerUnreachable, fs.ErrNotExist, "start the broker"},
		{"dead", dead, wire.CodeBrokerUnreachable, unix.ECONNREFUSED, "left over"},
		{"empty", "", wire.CodeInvalidArgument, nil, "name the socket"},
		{"long", "/" + strings.Repeat("x", 107), wire.CodeInvalidArgument, nil, "name the socket"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := DialBroker(testContext(t), c.path)
			wantCode(t, err, c.code)
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%v does not say why", err)
			}
			if e := err.(*wire.Error); !strings.Contains(e.Advice, c.advice) {
				t.Errorf("the advice is %q", e.Advice)
			}
		})
	}
	_, err = DialSession(testContext(t), dead)
	wantCode(t, err, CodeSessionUnreachable)
}

// Root opens every socket, so the refusal is made by hand.
func TestUnreachableForThisUser(t *testing.T) {
	err := brokerTarget.unreachable(context.Background(), "/x", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", unix.EACCES)})
	wantCode(t, err, wire.CodeBrokerUnreachable)
	if e := err.(*wire.Error); !errors.Is(err, fs.ErrPermission) || !strings.Contains(e.Advice, "register this user") {
		t.Fatalf("got %v, %q", err, e.Advice)
	}
}

// A broker that answers with anything but its hello is not used.
func TestBadGreetings(t *testing.T) {
	hello := wire.Hello{Protocol: wire.ProtocolBroker, Versions: []uint64{1}, MaxFrame: wire.MaxBrokerFrame}
	with := func(change func(h *wire.Hello)) wire.Message {
		h := hello
		change(&h)
		return h
	}
	for _, c := range []struct {
		name string
		m    wire.Message
		code wire.Code
	}{
		{"refusal", (&wire.Error{Code: wire.CodePermissionDenied, Message: "no"}).ToMessage(0), wire.CodePermissionDenied},
		{"the other protocol", with(func(h *wire.Hello) { h.Protocol = wire.ProtocolBridge }), wire.CodeUnsupportedVersion},
		{"a later version", with(func(h *wire.Hello) { h.Versions = []uint64{2} }), wire.CodeUnsupportedVersion},
		{"two versions", with(func(h *wire.Hello) { h.Versions = []uint64{1, 2} }), wire.CodeUnsupportedVersion},
		{"no hello", wire.Done{ID: 1}, CodeProtocolViolation},
		{"nothing", nil, CodeConnectionLost},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := listen(t, func(conn *net.UnixConn) {
				if c.m != nil {
					wire.WriteMessage(conn, c.m, wire.MaxBrokerFrame)
				}
			})
			_, err := DialBroker(testContext(t), path)
			wantCode(t, err, c.code)
		})
	}
}

// A peer that accepts and says nothing does not hold a client for ever.
func TestSilentPeer(t *testing.T) {
	done := make(chan struct{})
	path := listen(t, func(*net.UnixConn) { <-done })
	defer close(done)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	_, err := DialBroker(ctx, path)
	wantCode(t, err, wire.CodeTimeout)
}

// R33: while a bridge is replaced nobody accepts; a full backlog is waited for.
func TestFullBacklog(t *testing.T) {
	dir, err := os.MkdirTemp("", "ps-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "x.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	first, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err = DialSession(ctx, path)
	wantCode(t, err, CodeSessionUnreachable)
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatalf("got %v", err)
	}
	connected := make(chan error)
	go func() {
		conn, err := sessionTarget.connect(testContext(t), path)
		if err == nil {
			conn.Close()
		}
		connected <- err
	}()
	accepted, _, err := unix.Accept(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(accepted)
	if err := <-connected; err != nil {
		t.Fatal(err)
	}
}

// R30: the whole vocabulary of the broker, and lists of several pages.
func TestBroker(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	b := mustDialBroker(t, server)
	ctx := testContext(t)
	var made []wire.SessionInfo
	for range 7 {
		info, err := b.Create(ctx, CreateOptions{
			Workspace: clienttest.Workspace, Folder: "f/g", Profile: "pi", AgentSession: "a", Model: "p/m", Thinking: "high",
			Attachments: []wire.Attachment{{Kind: wire.AttachmentExtension, Name: "x.ts", Data: []byte("x")}},
		})
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, info)
	}
	if m := server.Requests()[0].(wire.Create); m.Folder != "f/g" || m.AgentSession != "a" || m.Model != "p/m" || m.Thinking != "high" || len(m.Attachments) != 1 {
		t.Fatalf("asked for %+v", m)
	}
	all, err := b.List(ctx)
	if err != nil || len(all) != len(made) {
		t.Fatalf("listed %d, %v", len(all), err)
	}
	if got, err := b.Inspect(ctx, made[3].Session); err != nil || got.Session != made[3].Session {
		t.Fatalf("got %+v, %v", got, err)
	}
	if got := b.SessionSocket(made[0]); got != filepath.Join(server.Dir, made[0].Socket) {
		t.Fatalf("the socket is %s", got)
	}
	if b.SessionSocket(wire.SessionInfo{}) != "" {
		t.Fatal("a session without socket has one")
	}
	if err := b.Signal(ctx, made[0].Session, "TERM"); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Terminate(ctx, made[1].Session, time.Minute); err != nil || got.Exit == nil || got.Exit.Signal != "TERM" {
		t.Fatalf("got %+v, %v", got, err)
	}
	for range 2 {
		if err := b.Delete(ctx, made[0].Session); err != nil {
			t.Fatal(err)
		}
	}
	if d, err := b.Describe(ctx, ""); err != nil || d.DefaultProfile != clienttest.Profile {
		t.Fatalf("got %+v, %v", d, err)
	}
	_, err = b.Inspect(ctx, made[0].Session)
	wantCode(t, err, wire.CodeUnknownSession)
	_, err = b.Create(ctx, CreateOptions{Path: "/nowhere"})
	wantCode(t, err, wire.CodePathUnregistered)
	_, err = b.Create(ctx, CreateOptions{Workspace: "nowhere"})
	wantCode(t, err, wire.CodeUnknownWorkspace)
	_, err = b.Create(ctx, CreateOptions{Workspace: "../etc"})
	wantCode(t, err, wire.CodeInvalidArgument)
	wantCode(t, b.Signal(ctx, made[0].Session, "STOP"), wire.CodeInvalidSignal)
	_, err = b.Terminate(ctx, made[0].Session, -time.Second)
	wantCode(t, err, wire.CodeInvalidArgument)
}

// A call that was given up leaves the connection usable, and its late answer
// reaches nobody else.
func TestLateAnswer(t *testing.T) {
	server := clienttest.Start(t, func(p *clienttest.Process) wire.Exit {
		<-p.Signals // TERM
		<-p.Signals // KILL
		return clienttest.Exited(0)
	})
	info := server.Add(t)
	b := mustDialBroker(t, server)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := b.Terminate(ctx, info.Session, 100*time.Millisecond)
	wantCode(t, err, wire.CodeTimeout)
	if got, err := b.Inspect(testContext(t), info.Session); err != nil || got.Session != info.Session {
		t.Fatalf("got %+v, %v", got, err)
	}
}

// No descriptor stays behind, however a connection ends.
func TestDescriptors(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	info := server.Add(t)
	count := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	use := func() {
		b := mustDialBroker(t, server)
		s := mustDialSession(t, server, info)
		mustAttach(t, s, AttachOptions{Mode: wire.ModeObserver, From: wire.FromOldest})
		b.Close()
		s.Close()
		DialBroker(testContext(t), filepath.Join(server.Dir, "none"))
	}
	use()
	deadline := time.Now().Add(10 * time.Second)
	before := count()
	for range 20 {
		use()
	}
	for count() > before {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors became %d", before, count())
		}
		time.Sleep(5 * time.Millisecond)
	}
}
