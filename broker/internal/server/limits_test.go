package server

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

func countFDs(t testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// wantFDs waits for what the broker closes after its answer.
func wantFDs(t *testing.T, before int) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for n := countFDs(t); n > before; n = countFDs(t) {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors before, %d after", before, n)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// short are limits that a test can wait for.
func short() Limits {
	l := Defaults
	l.Hello, l.Message, l.Write = 3*time.Second, time.Second, time.Second
	return l
}

// A peer that stops in the middle of a frame, or says nothing, is let go.
func TestDeadlines(t *testing.T) {
	s := newLimited(t, short())
	silent, half := s.dial("root"), s.hello("root")
	if _, err := half.nc.Write([]byte{0, 0}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*peer{silent, half} {
		p.wantCode(p.read(), wire.CodeTimeout, 0)
		p.wantEnd()
	}
}

// A socket serves a bounded number of connections, and more when some close.
func TestTooManyConnections(t *testing.T) {
	s := newSystem(t)
	peers := make([]*peer, Defaults.share(2))
	for i := range peers {
		peers[i] = s.hello("root")
	}
	refused := s.dial("root")
	refused.wantCode(refused.read(), wire.CodeTooManyConnections, 0)
	refused.wantEnd()
	if m := s.hello("admin").ask(wire.ListSessions{ID: 1}); m.Kind() != "sessionList" {
		t.Errorf("the operator is locked out: %+v", m)
	}
	peers[0].nc.Close()
	deadline := time.Now().Add(10 * time.Second)
	for {
		p := s.dial("root")
		if err := p.c.WriteMessage(wire.Hello{Protocol: wire.ProtocolBroker, Versions: []uint64{1}, MaxFrame: wire.MaxBrokerFrame}); err == nil {
			if m, err := p.c.ReadMessage(wire.BrokerReplies); err == nil && m.Kind() == "hello" {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("the place of a closed connection stays taken")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A client that sends many requests and reads no answer is let go; nothing
// waits for it.
func TestDeafClient(t *testing.T) {
	s := newLimited(t, short())
	p := s.hello("root")
	payload, err := wire.Encode(wire.Describe{ID: 1})
	if err != nil {
		t.Fatal(err)
	}
	burst := bytes.Repeat(wire.AppendFrame(nil, payload), 1000)
	p.nc.SetWriteDeadline(time.Now().Add(30 * time.Second))
	for {
		if _, err := p.nc.Write(burst); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the broker still holds the connection")
			}
			break
		}
	}
	if _, err := io.Copy(io.Discard, p.nc); err != nil && !errors.Is(err, unix.ECONNRESET) {
		t.Logf("the end: %v", err)
	}
}

// A client that closed its side gets its answers.
func TestHalfClosedClient(t *testing.T) {
	s := newSystem(t)
	p := s.hello("root")
	for id := range uint64(20) {
		if err := p.c.WriteMessage(wire.Describe{ID: id + 1}); err != nil {
			t.Fatal(err)
		}
	}
	p.nc.CloseWrite()
	for range 20 {
		if m := p.read(); m.Kind() != "deployment" {
			t.Errorf("got %+v", m)
		}
	}
	p.wantEnd()
}
