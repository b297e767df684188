package app_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/rig"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

func dialog(id, method string) string {
	return fmt.Sprintf(`{"type":"extension_ui_request","id":%q,"method":%q,"title":"?"}`+"\n", id, method)
}

func answerTo(id string) string {
	return fmt.Sprintf(`{"type":"extension_ui_response","id":%q,"confirmed":true}`+"\n", id)
}

func pendingIDs(p []wire.PendingRequest) string {
	s := ""
	for _, q := range p {
		s += fmt.Sprintf("%s@%d ", q.RequestID, q.Sequence)
	}
	return s
}

// R45: a request stays pending over acks, takeovers and bridges, is shown
// again, and is answered exactly once.
func TestPendingRequests(t *testing.T) {
	r := rig.New(t, rig.Options{Framing: wire.FramingPi})
	b := r.Start()
	c := r.Writer()
	for _, l := range []string{
		dialog("a", "confirm"), dialog("n", "notify"), dialog("b", "select"), dialog("s", "setStatus"),
		`{"type":"message","text":"\"extension_ui_request\""}` + "\n", dialog("c", "input"), dialog("d", "editor"),
	} {
		if _, err := r.AgentStdout.WriteString(l); err != nil {
			t.Fatal(err)
		}
		c.Expect(wire.StreamStdout, []byte(l))
	}
	if got := pendingIDs(c.Inspect().Pending); got != "a@1 b@3 c@6 d@7 " {
		t.Fatalf("pending %s", got)
	}
	if _, e := c.Ack(7); e != nil {
		t.Fatal(e)
	}
	if dup, e := c.Input("i1", []byte(answerTo("b")+`{"type":"abort"}`+"\n"+answerTo("unknown"))); e != nil || dup {
		t.Fatal(dup, e)
	}
	_, e := c.Input("i2", []byte(answerTo("a")+answerTo("b")))
	wantCode(t, e, wire.CodeRequestAnswered)
	_, e = c.Input("i3", []byte(answerTo("c")+answerTo("c")))
	wantCode(t, e, wire.CodeRequestAnswered)

	// Everything is acknowledged, and still shown to the next bridge's writer.
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	r.Start()
	c = r.Attach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromCursor, Cursor: &wire.Cursor{Epoch: r.Epoch, Sequence: 7}})
	if got := pendingIDs(c.Attached.Pending); got != "a@1 c@6 d@7 " {
		t.Fatalf("pending after recovery %s", got)
	}
	if _, err := r.AgentStdout.WriteString("{}\n"); err != nil {
		t.Fatal(err)
	}
	c.Expect(wire.StreamStdout, []byte("{}\n"))
	want := []string{dialog("a", "confirm"), dialog("c", "input"), dialog("d", "editor")}
	if len(c.Records) != len(want) {
		t.Fatalf("%d pending records were shown", len(c.Records))
	}
	for i, rec := range c.Records {
		if !rec.Pending || string(rec.Data) != want[i] {
			t.Fatalf("pending record %+v", rec)
		}
	}
	_, e = c.Input("i4", []byte(answerTo("b")))
	wantCode(t, e, wire.CodeRequestAnswered)
	if _, e := c.Input("i5", []byte(answerTo("a")+answerTo("c")+answerTo("d"))); e != nil {
		t.Fatal(e)
	}
	if got := c.Inspect().Pending; len(got) != 0 {
		t.Fatalf("pending at last %+v", got)
	}
}

// R43, R45: with the profile pi an input is whole JSON lines that can't crash
// the agent, and is taken or refused as a whole.
func TestPiInputs(t *testing.T) {
	r := rig.New(t, rig.Options{Framing: wire.FramingPi, MaxInput: 1000})
	r.Start()
	c := r.Writer()
	for i, bad := range []string{
		"null\n", "{}\n", "[]\n", "1\n", "\n", `{"type":1}` + "\n", `{"type":"x"}`, `{"type":"x"}{"type":"y"}` + "\n",
		`{"Type":"x"}` + "\n", `{"type":"x"}` + "\nnull\n", "{\"type\":\"x\"\n", "\xff\n",
	} {
		_, e := c.Input(fmt.Sprint("bad", i), []byte(bad))
		if e == nil {
			t.Fatalf("%q was accepted", bad)
		}
		wantCode(t, e, wire.CodeInvalidInput)
	}
	for i, good := range []string{
		`{"type":"x"}` + "\n", ` { "a" : [ null , {"type":1} ] , "type" : "x" } ` + "\r\n", `{"type":"x"}` + "\n" + `{"type":"y"}` + "\n",
		"{\"type\":\"x\",\"t\":\"\u2028\xff\"}\n",
	} {
		if _, e := c.Input(fmt.Sprint("good", i), []byte(good)); e != nil {
			t.Fatalf("%q: %v", good, e)
		}
	}
	_, e := c.Input("big", append(make([]byte, 1000), '\n'))
	wantCode(t, e, wire.CodeInputTooLarge)
	// The connection goes on after refused fragments.
	_, e = c.Input("huge", make([]byte, 3*wire.MaxFragment))
	wantCode(t, e, wire.CodeInputTooLarge)
	if st := c.Inspect(); st.InputAccepted == 0 {
		t.Fatalf("status %+v", st)
	}
}

// R45, R47: an agent that asks without end is not read any further, nothing is
// lost, and each answer lets it go on.
func TestTooManyRequestsStall(t *testing.T) {
	r := rig.New(t, rig.Options{Framing: wire.FramingPi})
	r.Start()
	c := r.Writer()
	n := wire.MaxPending + 10
	go func() {
		for i := range n {
			if _, err := r.AgentStdout.WriteString(dialog(fmt.Sprint(i), "confirm")); err != nil {
				return
			}
		}
	}()
	for i := range n {
		c.Expect(wire.StreamStdout, []byte(dialog(fmt.Sprint(i), "confirm")))
		if i < wire.MaxPending-1 {
			continue
		}
		if i == wire.MaxPending-1 {
			eventually(t, "the output to stall", func() bool { return c.Inspect().OutputStalled })
		}
		if _, e := c.Input(fmt.Sprint(i), []byte(answerTo(fmt.Sprint(i)))); e != nil {
			t.Fatal(e)
		}
	}
}

// R45, R47: an ack frees everything around a pending request and not the
// request; its answer frees that too, also when a bridge has died in between.
func TestPendingRequestSurvivesFreeing(t *testing.T) {
	r := rig.New(t, rig.Options{Framing: wire.FramingPi})
	b := r.Start()
	c := r.Writer()
	filler := `{"type":"message","text":"` + strings.Repeat("f", 50_000) + `"}` + "\n"
	request := dialog("kept", "confirm")
	text := strings.Repeat(filler, 30) + request + strings.Repeat(filler, 30)
	if _, err := r.AgentStdout.WriteString(text); err != nil {
		t.Fatal(err)
	}
	for range 61 {
		c.Next()
	}
	if _, e := c.Ack(61); e != nil {
		t.Fatal(e)
	}
	spool := filepath.Join(r.Dir, "stdout")
	eventually(t, "all but the request to be freed", func() bool { return allocated(t, spool) <= 16<<10 })
	if held := c.Inspect().SpoolBytes; held != uint64(len(request)) {
		t.Fatalf("the spool holds %d bytes", held)
	}
	for range 2 {
		if err := b.Stop(); err != nil {
			t.Fatal(err)
		}
		b = r.Start()
		c = r.Writer()
		c.Inspect()
		if len(c.Records) != 1 || string(c.Records[0].Data) != request {
			t.Fatalf("shown again: %+v", c.Records)
		}
	}
	if _, e := c.Input("i", []byte(answerTo("kept"))); e != nil {
		t.Fatal(e)
	}
	eventually(t, "the request to be freed", func() bool { return allocated(t, spool) <= 4096 })
	if held := c.Inspect().SpoolBytes; held != 0 {
		t.Fatalf("the spool holds %d bytes", held)
	}
}
