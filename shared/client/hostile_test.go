package client

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// A bridge that was taken over can't make a client skip, repeat or mix up
// records, or hold more than its limits.
func TestHostileRecords(t *testing.T) {
	const limit = 4 << 20
	part := func(sequence, offset uint64, data string, flags wire.Flags) wire.Record {
		return wire.Record{Sequence: sequence, Stream: wire.StreamStdout, Offset: offset, Flags: flags, Data: []byte(data)}
	}
	more := wire.FlagMore
	for _, c := range []struct {
		name string
		send []wire.Records
		code wire.Code
	}{
		{"backwards", []wire.Records{records(line(5, "a"), line(4, "b"))}, CodeProtocolViolation},
		{"twice", []wire.Records{records(line(5, "a"), line(5, "a"))}, CodeProtocolViolation},
		{"a gap", []wire.Records{records(line(5, "a"), line(7, "b"))}, CodeProtocolViolation},
		{"not where it was asked", []wire.Records{records(line(6, "a"))}, CodeProtocolViolation},
		{"before the cursor", []wire.Records{records(line(4, "a"))}, CodeProtocolViolation},
		{"a fragment without its head", []wire.Records{records(part(5, 3, "a", 0))}, CodeProtocolViolation},
		{"a hole in the fragments", []wire.Records{records(part(5, 0, "abc", more)), records(part(5, 4, "d", 0))}, CodeProtocolViolation},
		{"fragments that overlap", []wire.Records{records(part(5, 0, "abc", more), part(5, 2, "c", 0))}, CodeProtocolViolation},
		{"fragments of two records", []wire.Records{records(part(5, 0, "abc", more), part(6, 3, "d", 0))}, CodeProtocolViolation},
		{"fragments of two streams", []wire.Records{records(part(5, 0, "abc", more), wire.Record{Sequence: 5, Stream: wire.StreamStderr, Offset: 3, Data: []byte("d")})}, CodeProtocolViolation},
		{"an exit within fragments", []wire.Records{records(part(5, 0, "abc", more), exitRecord(t, 6))}, CodeProtocolViolation},
		{"records after the exit", []wire.Records{records(exitRecord(t, 5), line(6, "a"))}, CodeProtocolViolation},
		{"no exit in the exit", []wire.Records{records(wire.Record{Sequence: 5, Stream: wire.StreamExit, Data: []byte{0xa0}})}, CodeProtocolViolation},
		{"a stream that is none", []wire.Records{records(wire.Record{Sequence: 5, Stream: 4, Data: []byte("a")})}, CodeProtocolViolation},
		{"an empty record", []wire.Records{records(wire.Record{Sequence: 5, Stream: wire.StreamStdout})}, CodeProtocolViolation},
		{"no record", []wire.Records{{}}, CodeProtocolViolation},
		{"a pending request not announced", []wire.Records{{Pending: true, Records: []wire.Record{line(5, "a")}}}, CodeProtocolViolation},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := bridge(t, SessionConfig{MaxRecord: limit}, func(p *rawPeer) {
				if !p.attached(wire.Attached{NextSequence: 9, LostBefore: 2}) {
					return
				}
				for _, m := range c.send {
					p.raw(m)
				}
				p.drain()
			})
			ctx := testContext(t)
			mustAttach(t, s, AttachOptions{Mode: wire.ModeWriter, From: wire.FromCursor, Cursor: &wire.Cursor{Epoch: testEpoch, Sequence: 4}})
			var err error
			for err == nil {
				_, err = s.Next(ctx)
			}
			if err == io.EOF && c.name == "records after the exit" {
				_, err = s.Inspect(ctx) // the connection has ended all the same
			}
			wantCode(t, err, c.code)
		})
	}
}

// R49: fragments add up to no more than the client allows.
func TestEndlessRecord(t *testing.T) {
	const limit = 1 << 20
	s := bridge(t, SessionConfig{MaxRecord: limit}, func(p *rawPeer) {
		if !p.attached(wire.Attached{NextSequence: 1, LostBefore: 1}) {
			return
		}
		r := wire.Record{Sequence: 1, Stream: wire.StreamStdout, Flags: wire.FlagMore, Data: repeat(wire.MaxFragment)}
		for p.raw(records(r)) {
			r.Offset += uint64(len(r.Data))
		}
	})
	mustAttach(t, s, asWriter)
	_, err := s.Next(testContext(t))
	wantCode(t, err, CodeRecordTooLarge)
}

// Answers that fit no question end the connection.
func TestHostileAnswers(t *testing.T) {
	id := func(m wire.Message) uint64 { return m.(wire.Ping).ID }
	for _, c := range []struct {
		name   string
		answer func(m wire.Message) wire.Message
	}{
		{"another type", func(m wire.Message) wire.Message { return wire.Done{ID: id(m)} }},
		{"an id of the future", func(m wire.Message) wire.Message { return wire.Pong{ID: id(m) + 1} }},
		{"a second hello", func(wire.Message) wire.Message {
			return wire.Hello{Protocol: wire.ProtocolBridge, Versions: []uint64{1}, MaxFrame: wire.MaxBridgeFrame}
		}},
		{"an attachment", func(m wire.Message) wire.Message {
			return wire.Attached{ID: id(m), Session: "0198c0de00007000800000000000beef", Epoch: testEpoch, NextSequence: 1}
		}},
		{"records before attaching", func(wire.Message) wire.Message { return records(line(1, "a")) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := bridge(t, SessionConfig{}, func(p *rawPeer) {
				if m := p.read(); m != nil {
					p.send(c.answer(m))
				}
				p.drain()
			})
			wantCode(t, s.Ping(testContext(t)), CodeProtocolViolation)
			wantCode(t, s.Ping(testContext(t)), CodeProtocolViolation)
		})
	}
}

// What an attachment promises has to hold together.
func TestHostileAttachments(t *testing.T) {
	other := wire.Epoch("ffffffffffffffff")
	pending := func(n ...uint64) (all []wire.PendingRequest) {
		for _, s := range n {
			all = append(all, wire.PendingRequest{RequestID: "q", Sequence: s})
		}
		return all
	}
	for _, c := range []struct {
		name string
		a    wire.Attached
	}{
		{"no next sequence", wire.Attached{}},
		{"another epoch", wire.Attached{NextSequence: 9, LostBefore: 1, Epoch: other}},
		{"a hole behind the cursor", wire.Attached{NextSequence: 9, LostBefore: 6}},
		{"a cursor beyond the end", wire.Attached{NextSequence: 4, LostBefore: 1}},
		{"more lost than there is", wire.Attached{NextSequence: 9, LostBefore: 10}},
		{"a request of the future", wire.Attached{NextSequence: 9, LostBefore: 1, Pending: pending(9)}},
		{"a request twice", wire.Attached{NextSequence: 9, LostBefore: 1, Pending: pending(3, 3)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := bridge(t, SessionConfig{}, func(p *rawPeer) {
				p.attached(c.a)
				p.drain()
			})
			_, err := s.Attach(testContext(t), AttachOptions{Mode: wire.ModeWriter, From: wire.FromCursor, Cursor: &wire.Cursor{Epoch: testEpoch, Sequence: 4}})
			wantCode(t, err, CodeProtocolViolation)
		})
	}
}

// R47: an observer that was overtaken gets what came before the gap, then the
// gap with its bounds.
func TestReplayGap(t *testing.T) {
	s := bridge(t, SessionConfig{}, func(p *rawPeer) {
		p.attached(wire.Attached{NextSequence: 3, LostBefore: 1})
		p.send(records(line(1, "a")))
		p.send((&wire.Error{Code: wire.CodeReplayGap, Message: "gone", LostBefore: 7}).ToMessage(0))
	})
	mustAttach(t, s, AttachOptions{Mode: wire.ModeObserver, From: wire.FromOldest})
	mustNext(t, s)
	_, err := s.Next(testContext(t))
	wantCode(t, err, wire.CodeReplayGap)
	if err.(*wire.Error).LostBefore != 7 {
		t.Fatalf("the bounds are lost: %+v", err)
	}
}

// The records before the end of a connection are not lost with it, be it
// between two frames or within one.
func TestConnectionLost(t *testing.T) {
	for name, tail := range map[string]string{"between frames": "", "in a length": "\x00\x00", "in a frame": "\x00\x00\x00\x09\xa1"} {
		t.Run(name, func(t *testing.T) {
			s := bridge(t, SessionConfig{}, func(p *rawPeer) {
				p.attached(wire.Attached{NextSequence: 3, LostBefore: 1})
				p.send(records(line(1, "a")))
				io.WriteString(p.conn, tail)
			})
			mustAttach(t, s, asWriter)
			mustNext(t, s)
			_, err := s.Next(testContext(t))
			wantCode(t, err, CodeConnectionLost)
		})
	}
}

// R47: a consumer that does not read makes the bridge wait, not the client's
// memory grow; calls still get their answers, up to the higher bound, and are
// told why when even that is reached.
func TestBackpressure(t *testing.T) {
	config := SessionConfig{ReadAhead: 1 << 20, MaxBuffer: 8 << 20}
	pings := make(chan uint64, 8)
	sent := make(chan int, 1)
	s := bridge(t, config, func(p *rawPeer) {
		if !p.attached(wire.Attached{NextSequence: 1, LostBefore: 1}) {
			return
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				m, ok := p.read().(wire.Ping)
				if !ok {
					return
				}
				pings <- m.ID
			}
		}()
		defer func() { <-done }()
		// Each burst comes before the answer to a ping.
		sequence := uint64(0)
		for _, burst := range []int{2 << 20, 32 << 20} {
			for n := 0; n < burst; n += wire.MaxFragment {
				sequence++
				if !p.send(records(wire.Record{Sequence: sequence, Stream: wire.StreamStdout, Data: repeat(wire.MaxFragment)})) {
					return
				}
				select {
				case sent <- int(sequence):
				default:
					<-sent
					sent <- int(sequence)
				}
			}
			if !p.send(wire.Pong{ID: <-pings}) {
				return
			}
		}
		p.send(records(exitRecord(t, sequence+1)))
	})
	mustAttach(t, s, asWriter)
	awaitStandstill(t, sent)
	if size := held(s); size > config.ReadAhead+wire.MaxBridgeFrame {
		t.Fatalf("%d bytes are held", size)
	}
	if err := s.Ping(testContext(t)); err != nil {
		t.Fatalf("a call behind 2 MiB: %v", err)
	}
	// Long enough for the burst to come, on any machine.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := s.Ping(ctx)
	wantCode(t, err, wire.CodeTimeout)
	if !strings.Contains(err.(*wire.Error).Advice, "read records") {
		t.Errorf("the advice is %q", err.(*wire.Error).Advice)
	}
	if size := held(s); size > config.MaxBuffer+wire.MaxBridgeFrame {
		t.Fatalf("%d bytes are held", size)
	}
	total := 0
	for {
		batch, err := s.NextBatch(testContext(t))
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range batch {
			total += len(r.Data)
		}
	}
	if total < 34<<20 {
		t.Fatalf("only %d bytes came", total)
	}
}

func held(s *Session) int {
	s.inbox.mu.Lock()
	defer s.inbox.mu.Unlock()
	return s.inbox.size
}

// awaitStandstill waits until nothing is sent for a while.
func awaitStandstill(t *testing.T, sent <-chan int) {
	t.Helper()
	for range 1000 {
		select {
		case <-sent:
		case <-time.After(200 * time.Millisecond):
			return
		}
	}
	t.Fatal("the peer is never made to wait")
}

// A peer that does not read can't hold a call beyond its context; if a part of
// a frame was written, the connection ends with it.
func TestPeerThatDoesNotRead(t *testing.T) {
	done := make(chan struct{})
	s := bridge(t, SessionConfig{}, func(p *rawPeer) {
		p.attached(wire.Attached{NextSequence: 1, LostBefore: 1})
		<-done
	})
	defer close(done)
	mustAttach(t, s, asWriter)
	data := repeat(16 << 20)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := s.Input(ctx, "big", data)
	wantCode(t, err, wire.CodeTimeout)
	if _, err = s.Next(context.Background()); err == nil {
		t.Fatal("the connection goes on after half a frame")
	}
}

// One goroutine reads at a time; a second is refused, not mixed in.
func TestConcurrentReaders(t *testing.T) {
	s := bridge(t, SessionConfig{}, func(p *rawPeer) {
		p.attached(wire.Attached{NextSequence: 1, LostBefore: 1})
		p.drain()
	})
	mustAttach(t, s, asWriter)
	s.reading.Lock()
	_, err := s.Next(testContext(t))
	wantCode(t, err, CodeConcurrentRead)
	_, err = s.NextBatch(testContext(t))
	wantCode(t, err, CodeConcurrentRead)
	s.reading.Unlock()
}
