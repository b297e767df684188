package serve

import (
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/session"
	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/shared/peercred"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// R45: a request that another client answers between the attaching and its
// answer is not promised to the client, which waits for what it was promised.
func TestAnsweredBeforeItIsShown(t *testing.T) {
	near, fd, err := fdpass.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := fdpass.Adopt(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	// This session has no request, as one whose only request was answered.
	c := newConn(&Server{session: new(session.Session), stall: time.Minute}, near, peercred.Peer{})
	w := newWriter(c)
	w.limit = wire.MaxBridgeFrame
	c.queue.push(item{attach: &attachment{next: 2, answer: wire.Attached{
		ID: 1, Session: "0198c0de00007000800000000000beef", Epoch: "0011223344556677", NextSequence: 2, LostBefore: 1,
		Pending: []wire.PendingRequest{{RequestID: "a", Sequence: 1}},
	}}})
	if err := w.control(); err != nil {
		t.Fatal(err)
	}
	far.SetReadDeadline(time.Now().Add(time.Minute))
	m, err := wire.NewConn(far, wire.MaxBridgeFrame).ReadMessage(wire.BridgeReplies)
	if err != nil {
		t.Fatal(err)
	}
	if a, ok := m.(wire.Attached); !ok || len(a.Pending) != 0 || a.NextSequence != 2 {
		t.Fatalf("the answer is %+v", m)
	}
}
