package client

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/client/clienttest"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testEpoch wire.Epoch = "0011223344556677"

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func mustDialBroker(t testing.TB, s *clienttest.Server) *Broker {
	t.Helper()
	b, err := DialBroker(testContext(t), s.Socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func mustDialSession(t testing.TB, s *clienttest.Server, info wire.SessionInfo) *Session {
	t.Helper()
	c, err := DialSession(testContext(t), filepath.Join(s.Dir, info.Socket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func mustAttach(t testing.TB, s *Session, o AttachOptions) *wire.Attached {
	t.Helper()
	a, err := s.Attach(testContext(t), o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func mustNext(t testing.TB, s *Session) Record {
	t.Helper()
	r, err := s.Next(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantCode(t testing.TB, err error, code wire.Code) {
	t.Helper()
	if wire.CodeOf(err) != code {
		t.Fatalf("got %v, want %s", err, code)
	}
}

var asWriter = AttachOptions{Mode: wire.ModeWriter, From: wire.FromOldest}

// rawPeer is the other end of a session's connection, in the hands of a test.
type rawPeer struct {
	t    testing.TB
	conn *net.UnixConn
	c    *wire.Conn
}

// listen serves connections on a socket of its own, one after the other, until
// the test ends.
func listen(t testing.TB, serve func(conn *net.UnixConn)) (path string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "ps-")
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "x.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serve(conn.(*net.UnixConn))
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
		os.RemoveAll(dir)
	})
	return path
}

// bridge serves one connection as a bridge that has said hello.
func bridge(t testing.TB, config SessionConfig, script func(p *rawPeer)) *Session {
	t.Helper()
	path := listen(t, func(conn *net.UnixConn) {
		p := &rawPeer{t: t, conn: conn, c: wire.NewConn(conn, wire.MaxBridgeFrame)}
		if _, ok := p.read().(wire.Hello); !ok {
			return
		}
		p.send(wire.Hello{Protocol: wire.ProtocolBridge, Versions: []uint64{1}, MaxFrame: wire.MaxBridgeFrame})
		script(p)
	})
	s, err := config.Dial(testContext(t), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// read returns the client's next message, or nil at the end.
func (p *rawPeer) read() wire.Message {
	m, err := p.c.ReadMessage(wire.BridgeRequests)
	if err != nil {
		return nil
	}
	return m
}

func (p *rawPeer) send(m wire.Message) bool { return p.c.WriteMessage(m) == nil }

// raw sends records as they are, whatever the codec thinks of them.
func (p *rawPeer) raw(m wire.Records) bool {
	_, err := p.conn.Write(wire.AppendFrame(nil, wire.AppendRecords(nil, m)))
	return err == nil
}

// drain reads until the client has gone, so that it never finds a broken pipe.
func (p *rawPeer) drain() {
	for p.read() != nil {
	}
}

// attached answers the attach that has to come next.
func (p *rawPeer) attached(a wire.Attached) bool {
	m, ok := p.read().(wire.Attach)
	if !ok {
		p.t.Error("no attach came")
		return false
	}
	a.ID, a.Session, a.Generation = m.ID, "0198c0de00007000800000000000beef", 1
	if a.Epoch == "" {
		a.Epoch = testEpoch
	}
	if m.Mode == wire.ModeWriter && a.Lease == "" {
		a.Lease = "lease"
	}
	return p.send(a)
}

func line(sequence uint64, text string) wire.Record {
	return wire.Record{Sequence: sequence, Stream: wire.StreamStdout, Data: []byte(text)}
}

func exitRecord(t testing.TB, sequence uint64) wire.Record {
	data, err := wire.EncodeExit(wire.Exit{Reason: wire.ReasonExited})
	if err != nil {
		t.Fatal(err)
	}
	return wire.Record{Sequence: sequence, Stream: wire.StreamExit, Data: data}
}

func records(r ...wire.Record) wire.Records { return wire.Records{Records: r} }

func repeat(n int) []byte { return bytes.Repeat([]byte("x"), n) }
