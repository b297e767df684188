package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/client/clienttest"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// R41, R43: an input is given once however often it is sent, its output comes
// with sequences, and the end of the session comes last.
func TestSessionOfAnEcho(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	s := mustDialSession(t, server, server.Add(t))
	ctx := testContext(t)
	a := mustAttach(t, s, asWriter)
	if a.Lease == "" || a.Generation != 1 {
		t.Fatalf("attached as %+v", a)
	}
	for i, want := range []bool{false, true} {
		duplicate, err := s.Input(ctx, "one", []byte("hello\n"))
		if err != nil || duplicate != want {
			t.Fatalf("input %d: %v, %v", i, duplicate, err)
		}
	}
	_, err := s.Input(ctx, "one", []byte("other\n"))
	wantCode(t, err, wire.CodeInputIDConflict)
	if err := s.CloseInput(ctx); err != nil {
		t.Fatal(err)
	}
	if r := mustNext(t, s); r.Sequence != 1 || r.Stream != wire.StreamStdout || string(r.Data) != "hello\n" {
		t.Fatalf("got %+v", r)
	}
	r := mustNext(t, s)
	if exit, err := wire.DecodeExit(r.Data); r.Stream != wire.StreamExit || err != nil || exit.InputDelivered != 6 {
		t.Fatalf("got %+v, %v", r, err)
	}
	for range 2 {
		if _, err := s.Next(ctx); err != io.EOF {
			t.Fatalf("got %v after the exit", err)
		}
	}
	if err := s.Ack(ctx, 2); err != nil {
		t.Fatalf("no ack after the exit: %v", err)
	}
	if status, err := s.Inspect(ctx); err != nil || status.Exit == nil || status.Acked != 2 {
		t.Fatalf("got %+v, %v", status, err)
	}
	if err := s.Ping(ctx); err != nil {
		t.Fatal(err)
	}
}

// R42: a second writer is refused, a takeover fences the first, which gets the
// records before it, and whose lease is worth nothing any more.
func TestTakeover(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	info := server.Add(t)
	ctx := testContext(t)
	one, two := mustDialSession(t, server, info), mustDialSession(t, server, info)
	mustAttach(t, one, asWriter)
	if _, err := one.Input(ctx, "1", []byte("a\n")); err != nil {
		t.Fatal(err)
	}
	_, err := two.Attach(ctx, asWriter)
	wantCode(t, err, wire.CodeWriterAlreadyAttached)
	if a := mustAttach(t, two, AttachOptions{Mode: wire.ModeWriter, From: wire.FromOldest, Takeover: true}); a.Generation != 2 {
		t.Fatalf("generation %d", a.Generation)
	}
	select {
	case <-one.Fenced():
	case <-ctx.Done():
		t.Fatal("the first writer was not told")
	}
	if r, err := one.Next(ctx); err == nil && string(r.Data) == "a\n" {
		_, err = one.Next(ctx)
		if !errors.Is(err, ErrFenced) {
			t.Fatalf("got %v", err)
		}
	} else if !errors.Is(err, ErrFenced) {
		t.Fatalf("got %+v, %v", r, err)
	}
	_, err = one.Input(ctx, "2", []byte("b\n"))
	wantCode(t, err, wire.CodeStaleWriter)
	for name, call := range map[string]func() error{
		"ack": func() error { return one.Ack(ctx, 0) }, "close": func() error { return one.CloseInput(ctx) },
		"signal": func() error { return one.Signal(ctx, "TERM") }, "terminate": func() error { return one.Terminate(ctx, 0) },
	} {
		if wire.CodeOf(call()) != wire.CodeStaleWriter {
			t.Errorf("%s is not refused", name)
		}
	}
	if _, err := two.Input(ctx, "3", []byte("c\n")); err != nil {
		t.Fatal(err)
	}
	mustNext(t, two)
	if r := mustNext(t, two); string(r.Data) != "c\n" {
		t.Fatalf("got %q", r.Data)
	}
}

// R41, R48: after the death of the bridge's connections a client goes on at
// its cursor, and what it had seen beyond that is recognised.
func TestResume(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	info := server.Add(t)
	ctx := testContext(t)
	file := filepath.Join(t.TempDir(), "cursor")
	s := mustDialSession(t, server, info)
	mustAttach(t, s, asWriter)
	f, err := s.Follow(wire.Cursor{}, file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if _, err := s.Input(ctx, fmt.Sprint(i), []byte("line\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Next(ctx); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if err := f.Commit(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	seen := f.Cursor()
	server.KillBridge(info.Session)
	_, err = f.Next(ctx)
	wantCode(t, err, CodeConnectionLost)

	cursor, err := LoadCursor(file)
	if err != nil || cursor.Sequence != 1 {
		t.Fatalf("got %+v, %v", cursor, err)
	}
	s = mustDialSession(t, server, info)
	a := mustAttach(t, s, AttachOptions{Mode: wire.ModeWriter, From: wire.FromCursor, Cursor: &cursor, Takeover: true})
	if a.Acked != 1 {
		t.Fatalf("acked %d", a.Acked)
	}
	if f, err = s.Follow(seen, file); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Input(ctx, "last", []byte("last\n")); err != nil {
		t.Fatal(err)
	}
	records, err := f.NextBatch(ctx)
	if err != nil || len(records) != 1 || string(records[0].Data) != "last\n" || f.Duplicates() != 2 {
		t.Fatalf("got %+v, %v, %d duplicates", records, err, f.Duplicates())
	}
	if err := f.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if cursor, err = LoadCursor(file); err != nil || cursor.Sequence != 4 {
		t.Fatalf("got %+v, %v", cursor, err)
	}
	_, err = s.Follow(wire.Cursor{Epoch: testEpoch}, file)
	wantCode(t, err, wire.CodeInvalidCursor)
}

// R45: a pending request comes with the attachment, although it was
// acknowledged, and not as a record that moves the cursor.
func TestPendingRequests(t *testing.T) {
	const request = `{"type":"extension_ui_request","id":"q1","method":"confirm"}` + "\n"
	server := clienttest.Start(t, func(p *clienttest.Process) wire.Exit {
		io.WriteString(p.Stdout, request)
		return clienttest.Echo(p)
	})
	info := server.Add(t)
	ctx := testContext(t)
	s := mustDialSession(t, server, info)
	mustAttach(t, s, asWriter)
	if r := mustNext(t, s); string(r.Data) != request {
		t.Fatalf("got %q", r.Data)
	}
	if err := s.Ack(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(ctx); err != nil {
		t.Fatal(err)
	}
	_, err := s.Input(ctx, "x", []byte("x\n"))
	wantCode(t, err, wire.CodeNotAttached)

	s = mustDialSession(t, server, info)
	a := mustAttach(t, s, asWriter)
	pending := s.PendingRecords()
	if len(a.Pending) != 1 || len(pending) != 1 || pending[0].Sequence != 1 || string(pending[0].Data) != request {
		t.Fatalf("pending %+v, %+v", a.Pending, pending)
	}
	if _, err := s.Input(ctx, "answer", []byte(`{"type":"extension_ui_response","id":"q1","confirmed":true}`+"\n")); err != nil {
		t.Fatal(err)
	}
	if r := mustNext(t, s); r.Sequence != 2 {
		t.Fatalf("got record %d", r.Sequence)
	}
}

// R49: a line of 64 MiB of all bytes comes through both ways.
func TestHugeRecord(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	s := mustDialSession(t, server, server.Add(t))
	mustAttach(t, s, asWriter)
	data := make([]byte, 64<<20)
	for i := range 251 {
		if data[i] = byte(i); data[i] == '\n' {
			data[i] = 0xff
		}
	}
	for n := 251; n < len(data); n *= 2 {
		copy(data[n:], data[:n])
	}
	data[len(data)-1] = '\n'
	if _, err := s.Input(testContext(t), "huge", data); err != nil {
		t.Fatal(err)
	}
	if r := mustNext(t, s); !bytes.Equal(r.Data, data) || r.Continued {
		t.Fatalf("got %d bytes", len(r.Data))
	}
}

// An observer can't write, and is not the writer.
func TestObserver(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	info := server.Add(t)
	ctx := testContext(t)
	w, o := mustDialSession(t, server, info), mustDialSession(t, server, info)
	mustAttach(t, w, asWriter)
	if a := mustAttach(t, o, AttachOptions{Mode: wire.ModeObserver, From: wire.FromLive}); a.Lease != "" {
		t.Fatal("an observer got a lease")
	}
	_, err := o.Input(ctx, "1", []byte("a\n"))
	wantCode(t, err, wire.CodeNotAttached)
	if _, err := w.Input(ctx, "1", []byte("a\n")); err != nil {
		t.Fatal(err)
	}
	if r := mustNext(t, o); string(r.Data) != "a\n" {
		t.Fatalf("got %q", r.Data)
	}
	_, err = o.Attach(ctx, asWriter)
	wantCode(t, err, wire.CodeAlreadyAttached)
	wantCode(t, w.Ack(ctx, 7), wire.CodeInvalidAck)
	wantCode(t, w.Terminate(ctx, time.Hour), wire.CodeInvalidArgument)
}

// A finished session can be read again, and a cursor behind its exit finds the
// end at once.
func TestAttachAfterTheExit(t *testing.T) {
	server := clienttest.Start(t, func(p *clienttest.Process) wire.Exit {
		io.WriteString(p.Stderr, "bye")
		return clienttest.Exited(3)
	})
	info := server.Add(t)
	ctx := testContext(t)
	s := mustDialSession(t, server, info)
	a := mustAttach(t, s, asWriter)
	if r := mustNext(t, s); r.Stream != wire.StreamStderr || string(r.Data) != "bye" {
		t.Fatalf("got %+v", r)
	}
	mustNext(t, s)
	s = mustDialSession(t, server, info)
	mustAttach(t, s, AttachOptions{Mode: wire.ModeObserver, From: wire.FromCursor, Cursor: &wire.Cursor{Epoch: a.Epoch, Sequence: 2}})
	if _, err := s.Next(ctx); err != io.EOF {
		t.Fatalf("got %v", err)
	}
}

// Waits end with their context, and what comes after still works.
func TestCancelledWaits(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	s := mustDialSession(t, server, server.Add(t))
	mustAttach(t, s, asWriter)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := s.Next(ctx)
	wantCode(t, err, wire.CodeTimeout)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v does not say why", err)
	}
	ctx, cancel = context.WithCancel(context.Background())
	cancel()
	_, err = s.Next(ctx)
	wantCode(t, err, CodeCancelled)
	_, err = s.Input(ctx, "gone", []byte("a\n"))
	wantCode(t, err, CodeCancelled)
	if _, err := s.Input(testContext(t), "here", []byte("b\n")); err != nil {
		t.Fatal(err)
	}
	for string(mustNext(t, s).Data) != "b\n" {
	}
}

// Close ends what waits.
func TestCloseEndsWaits(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	s := mustDialSession(t, server, server.Add(t))
	mustAttach(t, s, asWriter)
	ended := make(chan error)
	go func() {
		_, err := s.Next(context.Background())
		ended <- err
	}()
	s.Close()
	wantCode(t, <-ended, CodeConnectionClosed)
	_, err := s.Input(testContext(t), "1", []byte("a\n"))
	wantCode(t, err, CodeConnectionClosed)
	if s.Close() != nil {
		t.Fatal("closing twice fails")
	}
}
