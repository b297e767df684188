package app_test

import (
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/rig"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

func wantCode(t *testing.T, e *wire.Error, code wire.Code) {
	t.Helper()
	if e == nil || e.Code != code {
		t.Fatalf("got %v, want %s", e, code)
	}
	if e.Message == "" || e.Advice == "" {
		t.Errorf("%s has no sentence or no advice: %+v", code, e)
	}
}

// ask sends a request with the given lease and returns the bridge's error.
func ask(c *rig.Client, make func(id uint64) wire.Message) *wire.Error {
	id := c.NextID()
	_, e := c.Ask(id, make(id))
	return e
}

// everyRight is every request that needs the writer's right.
func everyRight(lease string, epoch wire.Epoch) map[string]func(id uint64) wire.Message {
	return map[string]func(id uint64) wire.Message{
		"ack": func(id uint64) wire.Message {
			return wire.Ack{ID: id, Lease: lease, Cursor: wire.Cursor{Epoch: epoch}}
		},
		"input": func(id uint64) wire.Message {
			return wire.Input{ID: id, Lease: lease, InputID: "stale", Data: []byte("stale\n")}
		},
		"closeInput": func(id uint64) wire.Message { return wire.CloseInput{ID: id, Lease: lease} },
		"signal":     func(id uint64) wire.Message { return wire.Signal{ID: id, Lease: lease, Signal: "TERM"} },
		"terminate":  func(id uint64) wire.Message { return wire.Terminate{ID: id, Lease: lease} },
		"release":    func(id uint64) wire.Message { return wire.Release{ID: id, Lease: lease} },
	}
}

// R42: one writer; a second is refused; a takeover tells the old one, and
// nothing that a stale lease, an observer or a stolen lease sends has effect.
func TestOneWriter(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	first := r.Writer()
	if first.Attached.Generation != 1 || first.Attached.Lease == "" {
		t.Fatalf("attached %+v", first.Attached)
	}
	second := r.Connect()
	wantCode(t, second.TryAttach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromOldest}), wire.CodeWriterAlreadyAttached)
	if e := second.TryAttach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromOldest, Takeover: true, Client: "second"}); e != nil {
		t.Fatal(e)
	}
	if second.Attached.Generation != 2 || second.Attached.Lease == first.Attached.Lease {
		t.Fatalf("attached %+v", second.Attached)
	}
	observer := r.Observer(wire.FromOldest)
	for _, c := range []*rig.Client{first, observer} {
		for _, lease := range []string{first.Attached.Lease, second.Attached.Lease, ""} {
			for name, request := range everyRight(lease, r.Epoch) {
				e := ask(c, request)
				if e == nil {
					t.Fatalf("%s was done", name)
				}
				wantCode(t, e, wire.CodeStaleWriter)
			}
		}
	}
	if first.Fenced == nil || first.Fenced.Generation != 2 {
		t.Fatalf("the old writer was told %+v", first.Fenced)
	}
	st := second.Inspect()
	if st.InputAccepted != 0 || st.InputClosed || !st.HasWriter || st.Writer != "second" || st.Generation != 2 || st.Observers != 2 {
		t.Fatalf("status %+v", st)
	}
	if len(r.Signals) != 0 {
		t.Fatal("a stale writer's signal reached the broker")
	}
}

// R42: the seat is free once its connection has ended or given it back, and
// the lease with it.
func TestSeatIsGivenBack(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	first := r.Writer()
	if e := ask(first, func(id uint64) wire.Message { return wire.Release{ID: id, Lease: first.Attached.Lease} }); e != nil {
		t.Fatal(e)
	}
	_, e := first.Input("x", []byte("x\n"))
	wantCode(t, e, wire.CodeStaleWriter)
	second := r.Writer()
	second.Close()
	third := r.Connect()
	// The bridge learns of a closed connection in its own time.
	for deadline := 0; ; deadline++ {
		e := third.TryAttach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromOldest})
		if e == nil {
			break
		}
		if e.Code != wire.CodeWriterAlreadyAttached || deadline > 10_000 {
			t.Fatal(e)
		}
	}
	if third.Attached.Generation != 3 {
		t.Fatalf("generation %d", third.Attached.Generation)
	}
}

// R43: the same id with the same bytes is accepted once, also by another
// writer and by the next bridge; with other bytes it is a conflict.
func TestInputIsExactlyOnce(t *testing.T) {
	r := rig.New(t, rig.Options{})
	b := r.Start()
	agent(t, r, "cat")
	c := r.Writer()
	send := func(c *rig.Client, id, data string, duplicate bool) {
		t.Helper()
		if dup, e := c.Input(id, []byte(data)); e != nil || dup != duplicate {
			t.Fatalf("%s: duplicate %t, %v", id, dup, e)
		}
	}
	send(c, "one", "1\n", false)
	send(c, "one", "1\n", true)
	_, e := c.Input("one", []byte("2\n"))
	wantCode(t, e, wire.CodeInputIDConflict)
	c.Close()
	c = r.Attach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromOldest, Takeover: true})
	send(c, "one", "1\n", true)
	send(c, "two", "2\n", false)
	c.Close()
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	r.Start()
	c = r.Writer()
	if c.Attached.Generation != 3 {
		t.Fatalf("generation %d after recovery", c.Attached.Generation)
	}
	send(c, "two", "2\n", true)
	send(c, "one", "1\n", true)
	_, e = c.Input("two", []byte("1\n"))
	wantCode(t, e, wire.CodeInputIDConflict)
	if e := c.CloseInput(); e != nil {
		t.Fatal(e)
	}
	send(c, "one", "1\n", true)
	_, e = c.Input("three", []byte("3\n"))
	wantCode(t, e, wire.CodeRuntimeNotWritable)
	c.Expect(wire.StreamStdout, []byte("1\n"))
	c.Expect(wire.StreamStdout, []byte("2\n"))
	if r := c.Next(); r.Stream != wire.StreamExit {
		t.Fatalf("record %+v", r)
	}
}

// R41: a cursor of another epoch or beyond the end is an error, never a guess;
// acks stay within what was sent and never go backwards; what they free is
// told as a gap.
func TestCursorsAndAcks(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	c := r.Writer()
	lines := []string{"1\n", "2\n", "3\n", "4\n"}
	for _, l := range lines {
		if _, err := r.AgentStdout.WriteString(l); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range lines {
		c.Expect(wire.StreamStdout, []byte(l))
	}
	if _, e := c.Ack(5); e == nil || e.Code != wire.CodeInvalidAck {
		t.Fatalf("an ack beyond the end: %v", e)
	}
	c.Attached.Epoch = "ffffffffffffffff"
	_, e := c.Ack(1)
	wantCode(t, e, wire.CodeInvalidCursor)
	c.Attached.Epoch = r.Epoch
	for _, step := range []struct{ ack, want uint64 }{{2, 2}, {1, 2}, {0, 2}, {2, 2}, {3, 3}} {
		if got, e := c.Ack(step.ack); e != nil || got != step.want {
			t.Fatalf("ack %d: %d, %v", step.ack, got, e)
		}
	}
	at := func(epoch wire.Epoch, sequence uint64) wire.Attach {
		return wire.Attach{Mode: wire.ModeObserver, From: wire.FromCursor, Cursor: &wire.Cursor{Epoch: epoch, Sequence: sequence}}
	}
	o := r.Connect()
	wantCode(t, o.TryAttach(at("ffffffffffffffff", 3)), wire.CodeInvalidCursor)
	wantCode(t, o.TryAttach(at(r.Epoch, 5)), wire.CodeInvalidCursor)
	e = o.TryAttach(at(r.Epoch, 2))
	wantCode(t, e, wire.CodeReplayGap)
	if e.LostBefore != 4 {
		t.Fatalf("lost before %d", e.LostBefore)
	}
	if e := o.TryAttach(at(r.Epoch, 3)); e != nil {
		t.Fatal(e)
	}
	o.Expect(wire.StreamStdout, []byte("4\n"))
	wantCode(t, o.TryAttach(at(r.Epoch, 3)), wire.CodeAlreadyAttached)
	live := r.Observer(wire.FromLive)
	if a := live.Attached; a.NextSequence != 5 || a.LostBefore != 4 || a.Acked != 3 || a.Lease != "" {
		t.Fatalf("attached %+v", a)
	}
	if _, err := r.AgentStdout.WriteString("5\n"); err != nil {
		t.Fatal(err)
	}
	live.Expect(wire.StreamStdout, []byte("5\n"))
	o.Expect(wire.StreamStdout, []byte("5\n"))
}

// R42: a signal that a writer sent before it lost its seat, and that is still
// on its way, takes effect before the next writer has the seat, or not at all.
func TestNoSignalAfterTakeover(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.SignalsDone = make(chan struct{})
	r.Start()
	first, watcher := r.Writer(), r.Observer(wire.FromLive)
	signal := func(id uint64) wire.Message {
		return wire.Signal{ID: id, Lease: first.Attached.Lease, Signal: "TERM"}
	}
	asked := first.NextID()
	first.Send(signal(asked))
	<-r.Signals // the broker has it, and takes its time
	second := r.Connect()
	attach := second.NextID()
	second.Send(wire.Attach{ID: attach, Mode: wire.ModeWriter, From: wire.FromLive, Takeover: true})
	// A bridge that does not wait needs far less.
	for range 50 {
		if st := watcher.Inspect(); st.Generation != 1 {
			t.Fatalf("generation %d has the seat, and the signal of generation 1 is still to come", st.Generation)
		}
		time.Sleep(10 * time.Millisecond)
	}
	close(r.SignalsDone)
	if _, e := first.Await(asked); e != nil {
		t.Error(e)
	}
	if m, e := second.Await(attach); e != nil || m.(wire.Attached).Generation != 2 {
		t.Errorf("got %+v, %v", m, e)
	}
	wantCode(t, ask(first, signal), wire.CodeStaleWriter)
}
