package pi_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/client/clienttest"
	"git.jb.codes/jb/paseo-sandbox/shared/client/pi"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// timeout bounds a test.
const timeout = 60 * time.Second

// attach runs the fake in a session and attaches to it as its writer.
func attach(ctx context.Context, t *testing.T, f *fakePi) (again func(wire.Cursor) *client.Session) {
	t.Helper()
	server := clienttest.Start(t, f.run)
	b, err := client.DialBroker(ctx, server.Socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	info := server.Add(t)
	return func(from wire.Cursor) *client.Session {
		t.Helper()
		s, err := client.DialSession(ctx, b.SessionSocket(info))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		from.Epoch = info.Epoch
		if _, err := s.Attach(ctx, client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromCursor, Cursor: &from, Takeover: true}); err != nil {
			t.Fatal(err)
		}
		return s
	}
}

// give sends commands, named by their type and number.
func give(ctx context.Context, t *testing.T, s *client.Session, types ...string) {
	t.Helper()
	for i, kind := range types {
		id := fmt.Sprintf("given-%d", i)
		if _, err := s.Input(ctx, id, fmt.Appendf(nil, `{"type":%q,"id":%q}`+"\n", kind, id)); err != nil {
			t.Fatal(err)
		}
	}
}

// R44 R45: whatever Pi does, it does nothing afterwards; each record that was
// read meanwhile is given to the caller, once.
func TestCancelTurn(t *testing.T) {
	for name, c := range map[string]struct {
		pi      *fakePi
		given   []string
		prompts []string
		want    pi.Cancelled
	}{
		"nothing":                     {want: pi.Cancelled{}},
		"a turn":                      {given: []string{"prompt"}, want: pi.Cancelled{Turn: true}},
		"bash":                        {given: []string{"bash", "bash"}, want: pi.Cancelled{Bash: 2}},
		"a queue":                     {pi: &fakePi{clearsQueue: true}, given: []string{"prompt", "steer", "steer"}, want: pi.Cancelled{Turn: true}},
		"a queue without clear_queue": {given: []string{"prompt", "steer", "steer", "steer"}, want: pi.Cancelled{Turn: true}},
		"a queue without a turn":      {given: []string{"steer"}, want: pi.Cancelled{Queued: 1}},
		"a dialog without a turn":     {given: []string{"ask"}, want: pi.Cancelled{Dialogs: 1}},
		"dialogs":                     {given: []string{"prompt", "ask", "ask"}, want: pi.Cancelled{Turn: true, Dialogs: 2}},
		"a chain of dialogs":          {pi: &fakePi{chain: 5}, given: []string{"prompt", "ask"}, want: pi.Cancelled{Turn: true, Dialogs: 5}},
		"everything":                  {pi: &fakePi{chain: 3}, given: []string{"prompt", "steer", "bash", "ask"}, want: pi.Cancelled{Turn: true, Dialogs: 3, Bash: 1}},
		"a turn that begins":          {pi: &fakePi{late: 1}, given: []string{"prompt"}, prompts: []string{"given-0"}, want: pi.Cancelled{Turn: true}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			if c.pi == nil {
				c.pi = &fakePi{}
			}
			s := attach(ctx, t, c.pi)(wire.Cursor{})
			give(ctx, t, s, c.given...)
			var sequences []uint64
			got, err := pi.CancelTurn(ctx, s, pi.CancelOptions{ID: "stop", Prompts: c.prompts, Record: func(r client.Record) error {
				sequences = append(sequences, r.Sequence)
				return nil
			}})
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
			running, dialogs, bash, received := c.pi.state()
			if running || dialogs+bash > 0 {
				t.Errorf("running %t, %d dialogs, %d commands", running, dialogs, bash)
			}
			checkOnce(t, received)
			for i, sequence := range sequences {
				if sequence != uint64(i+1) {
					t.Fatalf("the caller got the records %v", sequences)
				}
			}
			if len(sequences) == 0 {
				t.Error("the caller got no record")
			}
		})
	}
}

// checkOnce wants that nothing was given twice.
func checkOnce(t *testing.T, received []string) {
	t.Helper()
	slices.Sort(received)
	if n := len(received); len(slices.Compact(received)) != n {
		t.Errorf("something was given twice: %v", received)
	}
}

// crashing is a connection that a crash of its program ends, before or after
// the nth call.
type crashing struct {
	*client.Session
	calls int
	after bool
}

var errCrash = errors.New("crashed")

func (c *crashing) Input(ctx context.Context, id string, data []byte) (duplicate bool, err error) {
	c.calls--
	if c.calls < 0 || c.calls == 0 && !c.after {
		return false, errCrash
	}
	duplicate, err = c.Session.Input(ctx, id, data)
	if c.calls == 0 {
		return false, errCrash
	}
	return duplicate, err
}

func (c *crashing) Next(ctx context.Context) (client.Record, error) {
	if c.calls <= 0 {
		return client.Record{}, errCrash
	}
	return c.Session.Next(ctx)
}

// R43 R44: a cancellation that a crash ended at any of its calls is finished by
// the next program under the same id, which may have read the records or not,
// and Pi gets no order twice.
func TestCancelTurnAfterCrash(t *testing.T) {
	for _, keeps := range []bool{false, true} {
		for _, after := range []bool{false, true} {
			for calls := 1; ; calls++ {
				if !crashAndGoOn(t, calls, after, keeps) {
					break
				}
			}
		}
	}
}

// crashAndGoOn reports whether the program crashed before it was done.
func crashAndGoOn(t *testing.T, calls int, after, keeps bool) (crashed bool) {
	t.Run(fmt.Sprintf("call %d, after it %t, cursor kept %t", calls, after, keeps), func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		f := fakePi{chain: 2}
		again := attach(ctx, t, &f)
		s := again(wire.Cursor{})
		give(ctx, t, s, "prompt", "steer", "bash", "ask")
		var cursor wire.Cursor
		o := pi.CancelOptions{ID: "stop", Record: func(r client.Record) error {
			if keeps {
				cursor.Sequence = r.Sequence
			}
			return nil
		}}
		_, err := pi.CancelTurn(ctx, &crashing{Session: s, calls: calls, after: after}, o)
		if err != nil && !errors.Is(err, errCrash) {
			t.Fatal(err)
		}
		crashed = err != nil
		if _, err := pi.CancelTurn(ctx, again(cursor), o); err != nil {
			t.Fatal(err)
		}
		running, dialogs, bash, received := f.state()
		if running || dialogs+bash > 0 {
			t.Errorf("running %t, %d dialogs, %d commands", running, dialogs, bash)
		}
		checkOnce(t, received)
	})
	return crashed && !t.Failed()
}

// R44: what can't be cancelled says why, and in time.
func TestCancelTurnFails(t *testing.T) {
	for name, c := range map[string]struct {
		pi    *fakePi
		id    string
		limit time.Duration
		want  wire.Code
	}{
		"no answer":    {pi: &fakePi{deaf: true}, id: "stop", limit: 100 * time.Millisecond, want: wire.CodeTimeout},
		"the end":      {pi: &fakePi{dies: true, deaf: true}, id: "stop", limit: timeout, want: wire.CodeSessionNotRunning},
		"no name":      {pi: &fakePi{}, limit: timeout, want: wire.CodeInvalidArgument},
		"a long name":  {pi: &fakePi{}, id: strings.Repeat("x", pi.MaxCancelID+1), limit: timeout, want: wire.CodeInvalidArgument},
		"another line": {pi: &fakePi{}, id: "a\nb", limit: timeout, want: wire.CodeInvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			s := attach(ctx, t, c.pi)(wire.Cursor{})
			give(ctx, t, s, "prompt")
			limited, cancel := context.WithTimeout(ctx, c.limit)
			defer cancel()
			_, err := pi.CancelTurn(limited, s, pi.CancelOptions{ID: c.id})
			if wire.CodeOf(err) != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

// R42: a program that is no longer the writer is told so, and cancels nothing.
func TestCancelTurnFenced(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	f := fakePi{}
	again := attach(ctx, t, &f)
	old := again(wire.Cursor{})
	give(ctx, t, old, "prompt")
	again(wire.Cursor{})
	if _, err := pi.CancelTurn(ctx, old, pi.CancelOptions{ID: "stop"}); wire.CodeOf(err) != wire.CodeStaleWriter {
		t.Errorf("got %v", err)
	}
	if _, _, _, received := f.state(); len(received) > 1 {
		t.Errorf("Pi got %v", received)
	}
}

// lines is a session that runs another program.
type lines struct{ *client.Session }

func (l lines) Inspect(ctx context.Context) (wire.Status, error) {
	status, err := l.Session.Inspect(ctx)
	status.Framing = wire.FramingLines
	return status, err
}

// R72: a program that is not Pi gets no command of Pi's as its input.
func TestCancelTurnIsForPi(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	f := fakePi{}
	s := attach(ctx, t, &f)(wire.Cursor{})
	if _, err := pi.CancelTurn(ctx, lines{s}, pi.CancelOptions{ID: "stop"}); wire.CodeOf(err) != wire.CodeInvalidArgument {
		t.Errorf("got %v", err)
	}
	if status, err := s.Inspect(ctx); err != nil || status.InputAccepted > 0 {
		t.Errorf("it got %d bytes, %v", status.InputAccepted, err)
	}
}

// A program that reads its records elsewhere, and one that can't store one.
func TestCancelTurnReadsElsewhere(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	f := fakePi{}
	s := attach(ctx, t, &f)(wire.Cursor{})
	give(ctx, t, s, "prompt")
	records := make(chan client.Record, 1000)
	reading, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for r, err := s.Next(reading); err == nil; r, err = s.Next(reading) {
			records <- r
		}
	}()
	next := func(ctx context.Context) (client.Record, error) {
		select {
		case r := <-records:
			return r, nil
		case <-ctx.Done():
			return client.Record{}, ctx.Err()
		}
	}
	if got, err := pi.CancelTurn(ctx, s, pi.CancelOptions{ID: "stop", Next: next}); err != nil || !got.Turn {
		t.Errorf("got %+v, %v", got, err)
	}
	full := errors.New("the disk is full")
	if _, err := pi.CancelTurn(ctx, s, pi.CancelOptions{ID: "more", Next: next, Record: func(client.Record) error { return full }}); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	stop()
	<-done
}
