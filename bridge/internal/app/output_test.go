package app_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/rig"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// eventually polls until the condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(rig.Timeout)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func allocated(t *testing.T, path string) int64 {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st.Sys().(*syscall.Stat_t).Blocks * 512
}

// R47: at the limit the agent is not read any further, which inspect shows; an
// ack frees disk and lets it go on; nothing is lost.
func TestBackpressure(t *testing.T) {
	r := rig.New(t, rig.Options{MaxRecord: 1 << 20, SpoolLimit: 17 << 20})
	r.Start()
	line := append(bytes.Repeat([]byte("x"), 100<<10), '\n')
	const n = 600 // 60 MB
	go func() {
		defer r.AgentStdout.Close()
		for range n {
			if _, err := r.AgentStdout.Write(line); err != nil {
				return
			}
		}
	}()
	c := r.Writer()
	eventually(t, "the output to stall", func() bool { return c.Inspect().OutputStalled })
	st := c.Inspect()
	if st.SpoolBytes > st.SpoolLimit+1<<20 || st.SpoolBytes < st.SpoolLimit-1<<20 {
		t.Fatalf("the spool holds %d bytes of %d", st.SpoolBytes, st.SpoolLimit)
	}
	for i := range n {
		rec := c.Expect(wire.StreamStdout, line)
		if i%16 == 15 {
			if _, e := c.Ack(rec.Sequence); e != nil {
				t.Fatal(e)
			}
		}
	}
	if _, e := c.Ack(n); e != nil {
		t.Fatal(e)
	}
	eventually(t, "the output to go on", func() bool { return !c.Inspect().OutputStalled })
	eventually(t, "the disk to be freed", func() bool { return allocated(t, filepath.Join(r.Dir, "stdout")) < 2<<20 })
	if st := c.Inspect(); st.SpoolBytes != 0 || st.StdoutBytes != uint64(n*len(line)) {
		t.Fatalf("status %+v", st)
	}
}

// R47: a client that does not read costs nobody else anything, and gets
// everything when it reads, or is told that it was overtaken.
func TestStoppedObserver(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	stopped := r.Observer(wire.FromOldest)
	slow := r.Observer(wire.FromOldest)
	c := r.Writer()
	line := append(bytes.Repeat([]byte("y"), 9999), '\n')
	const n = 3000
	go func() {
		for range n {
			if _, err := r.AgentStdout.Write(line); err != nil {
				return
			}
		}
	}()
	for range n {
		c.Expect(wire.StreamStdout, line)
	}
	for range n {
		slow.Expect(wire.StreamStdout, line)
	}
	if _, e := c.Ack(n); e != nil {
		t.Fatal(e)
	}
	// What the stopped one gets is right as far as it goes, never zeros.
	var err error
	for err == nil {
		err = stopped.Step()
	}
	e, ok := err.(*wire.Error)
	if !ok {
		t.Fatal(err)
	}
	wantCode(t, e, wire.CodeReplayGap)
	if e.LostBefore != n+1 {
		t.Fatalf("lost before %d", e.LostBefore)
	}
	for i, rec := range stopped.Records {
		if rec.Sequence != uint64(i+1) || !bytes.Equal(rec.Data, line) {
			t.Fatalf("record %d has sequence %d and %d bytes", i, rec.Sequence, len(rec.Data))
		}
	}
}

// R41: a record above the limit comes in pieces that are marked, and add up.
func TestContinuedRecords(t *testing.T) {
	r := rig.New(t, rig.Options{MaxRecord: 1000})
	r.Start()
	c := r.Writer()
	long := bytes.Repeat([]byte("z"), 2500)
	for _, b := range [][]byte{append(bytes.Clone(long[:999]), '\n'), append(bytes.Clone(long[:1000]), '\n'), append(bytes.Clone(long), '\n')} {
		if _, err := r.AgentStdout.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []struct {
		n         int
		continued bool
	}{{1000, false}, {1000, true}, {1, false}, {1000, true}, {1000, true}, {501, false}} {
		rec := c.Next()
		if len(rec.Data) != want.n || (rec.Flags&wire.FlagContinued != 0) != want.continued {
			t.Fatalf("piece %d: %d bytes, flags %d", i, len(rec.Data), rec.Flags)
		}
	}
}

// R31: the exit is the last record, after every byte of both streams, with the
// signal and with the broker's reason.
func TestExitRecord(t *testing.T) {
	for _, test := range []struct {
		name   string
		status int
		silent bool
		reason wire.Reason
		want   wire.Exit
	}{
		{name: "code", status: 3, reason: wire.ReasonExited, want: wire.Exit{Code: 3, Reason: wire.ReasonExited}},
		{name: "signal", status: 143, reason: wire.ReasonTerminated, want: wire.Exit{Code: 143, Signal: "TERM", Reason: wire.ReasonTerminated}},
		{name: "memory", silent: true, reason: wire.ReasonOutOfMemory, want: wire.Exit{Code: 137, Signal: "KILL", Reason: wire.ReasonOutOfMemory}},
		{name: "lost", silent: true, reason: wire.ReasonUnknown, want: wire.Exit{Code: 255, Reason: wire.ReasonUnknown}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := rig.New(t, rig.Options{})
			r.Reason = test.reason
			b := r.Start()
			c := r.Writer()
			big := bytes.Repeat([]byte("e"), 3<<20)
			go func() {
				_, _ = r.AgentStdout.WriteString("out")
				r.AgentStdout.Close()
				_, _ = r.AgentStderr.Write(big)
				r.AgentStderr.Close()
			}()
			if test.silent {
				r.AgentExit.Close()
			} else {
				r.Exit(test.status)
			}
			got := map[wire.Stream][]byte{}
			var last rig.Record
			for last.Stream != wire.StreamExit {
				last = c.Next()
				got[last.Stream] = append(got[last.Stream], last.Data...)
			}
			if string(got[wire.StreamStdout]) != "out" || !bytes.Equal(got[wire.StreamStderr], big) {
				t.Fatalf("%d and %d bytes", len(got[wire.StreamStdout]), len(got[wire.StreamStderr]))
			}
			if e, err := wire.DecodeExit(last.Data); err != nil || e != test.want {
				t.Fatalf("exit %+v, %v; want %+v", e, err, test.want)
			}
			if _, e := c.Ack(last.Sequence); e != nil {
				t.Fatal(e)
			}
			_, e := c.Input("late", []byte("late\n"))
			wantCode(t, e, wire.CodeRuntimeNotWritable)
			wantCode(t, ask(c, func(id uint64) wire.Message {
				return wire.Signal{ID: id, Lease: c.Attached.Lease, Signal: "TERM"}
			}), wire.CodeSessionNotRunning)
			// The next bridge knows the end and does not record it again.
			if err := b.Stop(); err != nil {
				t.Fatal(err)
			}
			r.Start()
			c = r.Writer()
			if c.Attached.Exit == nil || *c.Attached.Exit != test.want || c.Attached.NextSequence != last.Sequence+1 {
				t.Fatalf("attached %+v", c.Attached)
			}
		})
	}
}

// R31: a process that outlives the agent and holds its output open does not
// hold up the end.
func TestExitWithOpenPipes(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	c := r.Writer()
	if _, err := r.AgentStdout.WriteString("partial"); err != nil {
		t.Fatal(err)
	}
	r.Exit(0)
	c.Expect(wire.StreamStdout, []byte("partial"))
	if rec := c.Next(); rec.Stream != wire.StreamExit {
		t.Fatalf("record %+v", rec)
	}
}

// R50: terminate closes the input, then TERM, then KILL, each after its grace.
func TestTerminate(t *testing.T) {
	r := rig.New(t, rig.Options{})
	b := r.Start()
	c := r.Writer()
	terminate := func(id uint64) wire.Message {
		return wire.Terminate{ID: id, Lease: c.Attached.Lease, GraceMillis: 50}
	}
	if e := ask(c, terminate); e != nil {
		t.Fatal(e)
	}
	if n, err := r.AgentStdin.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatalf("standard input is open: %d, %v", n, err)
	}
	for _, want := range []string{"TERM", "KILL"} {
		select {
		case got := <-r.Signals:
			if got != want {
				t.Fatalf("signal %s, want %s", got, want)
			}
		case <-time.After(rig.Timeout):
			t.Fatalf("no %s", want)
		}
	}
	// R33: without a broker what needs it says so, and the rest goes on.
	b.Broker.Close()
	eventually(t, "the bridge to lose its broker", func() bool {
		e := ask(c, terminate)
		return e != nil && e.Code == wire.CodeBrokerUnreachable
	})
	wantCode(t, ask(c, func(id uint64) wire.Message {
		return wire.Signal{ID: id, Lease: c.Attached.Lease, Signal: "INT"}
	}), wire.CodeBrokerUnreachable)
	if _, err := r.AgentStdout.WriteString("still here\n"); err != nil {
		t.Fatal(err)
	}
	c.Expect(wire.StreamStdout, []byte("still here\n"))
	r.Exit(0)
	if rec := c.Next(); rec.Stream != wire.StreamExit {
		t.Fatalf("record %+v", rec)
	}
}

// R48, R50: closeInput outlives the bridge: the next one drains what was
// accepted, closes, and tells the broker; one that comes after that knows.
func TestCloseInputSurvives(t *testing.T) {
	r := rig.New(t, rig.Options{})
	b := r.Start()
	c := r.Writer()
	data := bytes.Repeat([]byte("0123456789abcde\n"), 3<<16) // 3 MiB, more than a pipe holds
	if _, e := c.Input("i", data); e != nil {
		t.Fatal(e)
	}
	c.Send(wire.CloseInput{ID: 1 << 20, Lease: c.Attached.Lease})
	eventually(t, "the entry", func() bool { return c.Inspect().InputClosed })
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	b = r.Start()
	c = r.Writer()
	if !c.Attached.InputClosed {
		t.Fatal("closeInput is forgotten")
	}
	_, e := c.Input("late", []byte("late\n"))
	wantCode(t, e, wire.CodeRuntimeNotWritable)
	got := make(chan []byte, 1)
	go func() {
		all, _ := io.ReadAll(r.AgentStdin)
		got <- all
	}()
	if e := c.CloseInput(); e != nil {
		t.Fatal(e)
	}
	select {
	case all := <-got:
		if !bytes.Equal(all, data) {
			t.Fatalf("%d bytes of %d arrived", len(all), len(data))
		}
	case <-time.After(rig.Timeout):
		t.Fatal("the agent's input does not end")
	}
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	r.Start()
	c = r.Writer()
	if e := c.CloseInput(); e != nil || !c.Attached.InputClosed {
		t.Fatal(e)
	}
	if st := c.Inspect(); st.InputDelivered != uint64(len(data)) || st.InputAccepted != st.InputDelivered {
		t.Fatalf("status %+v", st)
	}
}

// R47: delivered input is freed well behind the pipe, and arrives unchanged
// although the pipe holds pages of the file.
func TestInputIsFreed(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	c := r.Writer()
	const n, size = 40, 1 << 20
	got := make(chan error, 1)
	go func() {
		want := make([]byte, size)
		part := make([]byte, size)
		for i := range n {
			for j := range want {
				want[j] = byte(i + 1)
			}
			if _, err := io.ReadFull(r.AgentStdin, part); err != nil || !bytes.Equal(part, want) {
				got <- fmt.Errorf("input %d: %v", i, err)
				return
			}
		}
		got <- nil
	}()
	for i := range n {
		if _, e := c.Input(fmt.Sprint(i), bytes.Repeat([]byte{byte(i + 1)}, size)); e != nil {
			t.Fatal(e)
		}
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if a := allocated(t, filepath.Join(r.Dir, "input.data")); a > 8<<20 {
		t.Fatalf("%d bytes of delivered input are kept", a)
	}
}

// R31 R48: the reaper's death is not the agent's: the exit pipe ends, and
// output and input go on, also under the next bridge, until the broker says
// that the agent has ended. Its exit is unknown then, and all that it printed
// is there.
func TestReaperDies(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Reason = wire.ReasonUnknown
	r.Lives.Store(true)
	b := r.Start()
	r.AgentExit.Close()
	flow := func(c *rig.Client, line string) {
		t.Helper()
		if _, e := c.Input(line, []byte(line)); e != nil {
			t.Fatal(e)
		}
		got := make([]byte, len(line))
		if _, err := io.ReadFull(r.AgentStdin, got); err != nil || string(got) != line {
			t.Fatalf("the agent reads %q, %v", got, err)
		}
		if _, err := r.AgentStdout.WriteString(line); err != nil {
			t.Fatal(err)
		}
		c.Expect(wire.StreamStdout, []byte(line))
	}
	c := r.Writer()
	flow(c, "one\n")
	c.Close()
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	r.Start()
	c = r.Attach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromCursor, Cursor: &wire.Cursor{Epoch: r.Epoch, Sequence: 1}, Takeover: true})
	flow(c, "two\n")
	if _, err := r.AgentStdout.WriteString("last"); err != nil {
		t.Fatal(err)
	}
	r.AgentStdout.Close()
	r.AgentStderr.Close()
	r.Lives.Store(false)
	c.Expect(wire.StreamStdout, []byte("last"))
	last := c.Next()
	want := wire.Exit{Code: 255, Reason: wire.ReasonUnknown, InputAccepted: 8, InputDelivered: 8}
	if e, err := wire.DecodeExit(last.Data); err != nil || e != want || last.Stream != wire.StreamExit {
		t.Fatalf("exit %+v, %v; want %+v", e, err, want)
	}
}
