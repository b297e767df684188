package app_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/rig"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// dropping is a small session that drops the oldest.
var dropping = rig.Options{MaxRecord: 1 << 20, SpoolLimit: 17 << 20, Overflow: wire.OverflowDropOldest}

// numbered is line n, from 1, of a stream whose lines tell their sequence.
func numbered(n uint64) []byte {
	b := fmt.Appendf(nil, "%d ", n)
	return append(append(b, bytes.Repeat([]byte{byte('a' + n%26)}, int(n*7919%20011))...), '\n')
}

// writeNumbered writes lines first to last.
func writeNumbered(f *os.File, first, last uint64) error {
	for n := first; n <= last; n++ {
		if _, err := f.Write(numbered(n)); err != nil {
			return err
		}
	}
	return nil
}

// expectNumbered reads until the last line, each of which must be the one that
// its sequence says.
func expectNumbered(t *testing.T, c *rig.Client, next, last uint64) {
	t.Helper()
	for ; next <= last; next++ {
		rec := c.Next()
		if rec.Sequence != next || !bytes.Equal(rec.Data, numbered(next)) {
			t.Fatalf("record %d holds %.20q, want line %d", rec.Sequence, rec.Data, next)
		}
	}
}

// R47: by policy the oldest whole records are dropped at the limit: the agent
// is never held up, disk stays bounded, the loss is counted and told as a gap
// with its bounds, what is left is right, and the next bridge knows.
func TestDropOldest(t *testing.T) {
	const last = 6000 // 60 MB
	r := rig.New(t, dropping)
	b := r.Start()
	if err := writeNumbered(r.AgentStdout, 1, last); err != nil {
		t.Fatal(err)
	}
	c := r.Connect()
	var st wire.Status
	eventually(t, "all output to be numbered", func() bool { st = c.Inspect(); return st.NextSequence == last+1 })
	if st.DroppedRecords == 0 || st.LostBefore != st.DroppedRecords+1 || st.Acked != 0 || st.OutputStalled || st.Overflow != wire.OverflowDropOldest {
		t.Fatalf("status %+v", st)
	}
	if st.SpoolBytes > st.SpoolLimit+1<<20 || st.DroppedBytes+st.SpoolBytes != st.StdoutBytes {
		t.Fatalf("%d bytes held and %d dropped of %d", st.SpoolBytes, st.DroppedBytes, st.StdoutBytes)
	}
	if a := allocated(t, filepath.Join(r.Dir, "stdout")); a > int64(st.SpoolLimit)+2<<20 {
		t.Fatalf("the spool takes %d bytes of disk", a)
	}
	e := c.TryAttach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromCursor, Cursor: &wire.Cursor{Epoch: r.Epoch}})
	wantCode(t, e, wire.CodeReplayGap)
	if e.LostBefore != st.LostBefore {
		t.Fatalf("lost before %d, want %d", e.LostBefore, st.LostBefore)
	}
	c.Close()
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	r.Start()
	c = r.Writer()
	if again := c.Inspect(); again.DroppedRecords != st.DroppedRecords || again.DroppedBytes != st.DroppedBytes || again.Acked != 0 || c.Attached.Acked != 0 {
		t.Fatalf("after recovery %+v, before %+v", again, st)
	}
	expectNumbered(t, c, st.LostBefore, last)
	if acked, e := c.Ack(last); e != nil || acked != last {
		t.Fatalf("acked %d, %v", acked, e)
	}
	if again := c.Inspect(); again.DroppedRecords != st.DroppedRecords || again.Acked != last || again.SpoolBytes != 0 {
		t.Fatalf("after the ack %+v", again)
	}
}

// R47: a reader that records were dropped before it could be sent them gets
// what it gets right, is told where it can go on, and holds nobody up.
func TestDropOldestTellsReaders(t *testing.T) {
	const last = 6000
	r := rig.New(t, dropping)
	r.Start()
	stopped := r.Writer()
	if err := writeNumbered(r.AgentStdout, 1, last); err != nil {
		t.Fatal(err)
	}
	var err error
	for err == nil {
		err = stopped.Step()
	}
	var e *wire.Error
	if !errors.As(err, &e) {
		t.Fatal(err)
	}
	wantCode(t, e, wire.CodeReplayGap)
	got := uint64(len(stopped.Records))
	for i, rec := range stopped.Records {
		if rec.Sequence != uint64(i+1) || !bytes.Equal(rec.Data, numbered(uint64(i+1))) {
			t.Fatalf("record %d is not line %d", rec.Sequence, i+1)
		}
	}
	if got+1 >= e.LostBefore || e.LostBefore > last {
		t.Fatalf("after %d records those before %d are lost", got, e.LostBefore)
	}
	c := r.Attach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromOldest, Takeover: true})
	expectNumbered(t, c, c.Attached.LostBefore, last)
}

// R47: an agent that prints empty lines has its index bounded likewise.
func TestDropOldestBoundsIndex(t *testing.T) {
	const lines = 1 << 20
	r := rig.New(t, dropping)
	r.Start()
	if _, err := r.AgentStdout.Write(bytes.Repeat([]byte("\n"), lines)); err != nil {
		t.Fatal(err)
	}
	c := r.Connect()
	eventually(t, "all lines to be numbered", func() bool { return c.Inspect().NextSequence == lines+1 })
	if st := c.Inspect(); st.NextSequence-st.LostBefore > st.SpoolLimit/32 {
		t.Fatalf("%d index entries are held", st.NextSequence-st.LostBefore)
	}
	if a := allocated(t, filepath.Join(r.Dir, "index")); a > 20<<20 {
		t.Fatalf("the index takes %d bytes of disk", a)
	}
}

// R45, R47: a request that waits for an answer outlives its record.
func TestDropOldestKeepsRequests(t *testing.T) {
	o := dropping
	o.Framing = wire.FramingPi
	r := rig.New(t, o)
	b := r.Start()
	if _, err := r.AgentStdout.WriteString(dialog("kept", "confirm")); err != nil {
		t.Fatal(err)
	}
	if err := writeNumbered(r.AgentStdout, 2, 6000); err != nil {
		t.Fatal(err)
	}
	for _, bridge := range []string{"first", "second"} {
		c := r.Writer()
		if len(c.Attached.Pending) != 1 || c.Attached.Pending[0].Sequence != 1 || c.Attached.LostBefore < 3 {
			t.Fatalf("%s bridge: attached %+v", bridge, c.Attached)
		}
		for len(c.Records) == 0 {
			if err := c.Step(); err != nil {
				t.Fatal(err)
			}
		}
		if rec := c.Records[0]; !rec.Pending || string(rec.Data) != dialog("kept", "confirm") {
			t.Fatalf("%s bridge: record %+v", bridge, rec)
		}
		if bridge == "second" {
			if _, e := c.Input("a", []byte(answerTo("kept"))); e != nil {
				t.Fatal(e)
			}
			_, e := c.Input("b", []byte(answerTo("kept")))
			wantCode(t, e, wire.CodeRequestAnswered)
			return
		}
		c.Close()
		if err := b.Stop(); err != nil {
			t.Fatal(err)
		}
		r.Start()
	}
}

// R47, R48: bridges that are killed while they drop lose nothing but what
// they count: each record is the line that its sequence says.
func TestKilledBridgeDropsHonestly(t *testing.T) {
	r := rig.New(t, dropping)
	const last = 8000 // 80 MB
	produced := make(chan error, 1)
	go func() { produced <- writeNumbered(r.AgentStdout, 1, last) }()
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	read := 0
	var lost uint64
	for done := false; !done; {
		b := launch(t, r)
		b.WaitReady()
		c := r.Writer()
		if c.Attached.LostBefore < lost {
			t.Fatalf("the floor went back from %d to %d", lost, c.Attached.LostBefore)
		}
		lost = c.Attached.LostBefore
		next := lost
		for range rng.IntN(300) {
			if next > last || c.Step() != nil {
				break
			}
			for _, rec := range c.Records {
				if rec.Sequence != next || !bytes.Equal(rec.Data, numbered(next)) {
					t.Fatalf("record %d holds %.20q, want line %d", rec.Sequence, rec.Data, next)
				}
				next++
				read++
			}
			c.Records = nil
		}
		select {
		case err := <-produced:
			if err != nil {
				t.Fatal(err)
			}
			done = true
			eventually(t, "the last record", func() bool { return r.Observer(wire.FromLive).Attached.NextSequence == last+1 })
			st := r.Observer(wire.FromLive).Inspect()
			if st.DroppedBytes+st.SpoolBytes != st.StdoutBytes || st.DroppedRecords+1 != st.LostBefore {
				t.Errorf("the count is wrong: %+v", st)
			}
		case <-time.After(time.Duration(rng.IntN(60_000)) * time.Microsecond):
		}
		c.Close()
		b.kill(t)
	}
	t.Logf("%d records read, those before %d dropped", read, lost)
	if read == 0 || lost < 2 {
		t.Error("the test dropped nothing")
	}
}
