package pi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/client/pi"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// liar is a session whose agent prints what a fuzzer wants. In it %abort and
// %state stand for the ids of the last commands.
type liar struct {
	lines        [][]byte
	abort, state string
	given        map[string]string
	t            *testing.T
}

func (l *liar) Input(_ context.Context, id string, data []byte) (bool, error) {
	if old, known := l.given[id]; known {
		if old != string(data) {
			l.t.Fatalf("the input %q has other bytes now", id)
		}
		return true, nil
	}
	if l.given[id] = string(data); len(id) > wire.MaxInputID {
		l.t.Fatalf("the input id %q is too long", id)
	}
	for line := range bytes.Lines(data) {
		var c struct{ Type, ID string }
		if err := json.Unmarshal(line, &c); err != nil {
			l.t.Fatalf("%q: %v", line, err)
		}
		switch c.Type {
		case "abort":
			l.abort = c.ID
		case "get_state":
			l.state = c.ID
		}
	}
	return false, nil
}

func (l *liar) Inspect(context.Context) (wire.Status, error) {
	return wire.Status{Framing: wire.FramingPi, Pending: []wire.PendingRequest{{RequestID: "\x00\u2028\"}\n", Sequence: 1<<53 - 1}}}, nil
}

func (l *liar) Next(context.Context) (client.Record, error) {
	if len(l.lines) == 0 {
		return client.Record{}, io.EOF
	}
	text := strings.NewReplacer("%abort", l.abort, "%state", l.state).Replace(string(l.lines[0]))
	l.lines = l.lines[1:]
	return client.Record{Stream: wire.StreamStdout, Data: []byte(text)}, nil
}

// R44 R49: whatever an agent prints, a cancellation ends, gives only whole
// commands, and says that nothing runs only after the agent has said so.
func FuzzCancelTurn(f *testing.F) {
	f.Add([]byte(`{"type":"response","id":"%abort","success":true}` + "\n" + `{"type":"response","id":"%state","success":true,"data":{"isStreaming":false}}` + "\n"))
	f.Add([]byte(`{"type":"response","id":"%state","success":true,"data":null}` + "\n{}\nnull\n[]\n\xff"))
	f.Add([]byte(`{"type":"response","id":"%abort","success":false,"error":"no"}`))
	f.Add([]byte(`{"type":"extension_ui_request"}` + "\n" + `{"type":"response","id":"x/1/y","success":true}` + "\n" + `{"type":"agent_start"}` + "\n" + `{"type":"agent_settled"}`))
	f.Fuzz(func(t *testing.T, printed []byte) {
		l := &liar{lines: bytes.SplitAfter(printed, []byte("\n")), given: make(map[string]string), t: t}
		_, err := pi.CancelTurn(t.Context(), l, pi.CancelOptions{ID: "x", Prompts: []string{"p"}})
		switch wire.CodeOf(err) {
		case "":
			if !bytes.Contains(printed, []byte("%state")) {
				t.Fatal("nothing runs, and nobody said so")
			}
		case wire.CodeSessionNotRunning, pi.CodeRefused, wire.CodeTimeout:
		default:
			t.Fatal(err)
		}
	})
}
