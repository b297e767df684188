package client

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"pgregory.net/rapid"
)

// R41, R49: however records are cut into fragments and frames, they come out
// whole, in order and byte for byte, also when the frames' buffers are used
// again.
func TestReassembly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.Uint64Range(1, 1<<40).Draw(t, "first")
		sizes := rapid.SliceOfN(rapid.IntRange(1, 300), 1, 20).Draw(t, "sizes")
		var want []Record
		var fragments []wire.Record
		for i, size := range sizes {
			data := rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, "data")
			w := Record{Sequence: first + uint64(i), Stream: wire.Stream(rapid.IntRange(1, 2).Draw(t, "stream")), Continued: rapid.Bool().Draw(t, "continued"), Data: data}
			want = append(want, w)
			for offset := 0; offset < size; {
				n := rapid.IntRange(1, size-offset).Draw(t, "fragment")
				f := wire.Record{Sequence: w.Sequence, Stream: w.Stream, Offset: uint64(offset), Data: data[offset : offset+n]}
				if w.Continued {
					f.Flags |= wire.FlagContinued
				}
				if offset += n; offset < size {
					f.Flags |= wire.FlagMore
				}
				fragments = append(fragments, f)
			}
		}
		s := stream{max: 300, next: first}
		var got []Record
		var frame []byte
		for len(fragments) > 0 {
			n := rapid.IntRange(1, len(fragments)).Draw(t, "frame")
			frame = wire.AppendRecords(frame[:0], wire.Records{Records: fragments[:n]})
			fragments = fragments[n:]
			m, err := wire.DecodeRecords(frame)
			if err != nil {
				t.Fatal(err)
			}
			out, _, err := s.add(nil, m)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range out {
				r.Data = slices.Clone(r.Data)
				got = append(got, r)
			}
			clear(frame)
		}
		if !slices.EqualFunc(got, want, func(a, b Record) bool {
			return a.Sequence == b.Sequence && a.Stream == b.Stream && a.Continued == b.Continued && bytes.Equal(a.Data, b.Data)
		}) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// frames cuts a fuzzer's bytes into frames: two bytes of length, then those.
func frames(data []byte) (all [][]byte) {
	for len(data) >= 2 {
		n := min(int(binary.BigEndian.Uint16(data)), len(data)-2)
		all = append(all, data[2:2+n])
		data = data[2+n:]
	}
	return all
}

func unframes(t testing.TB, messages ...wire.Message) (data []byte) {
	for _, m := range messages {
		b, ok := []byte(nil), false
		if r, isRecords := m.(wire.Records); isRecords {
			b, ok = wire.AppendRecords(nil, r), true
		}
		if !ok {
			var err error
			if b, err = wire.Encode(m); err != nil {
				t.Fatal(err)
			}
		}
		data = append(binary.BigEndian.AppendUint16(data, uint16(len(b))), b...)
	}
	return data
}

// R49: whatever a bridge sends, the reader of a session ends in an error or
// goes on; sequences go up one by one, and the limits hold.
func FuzzSessionReader(f *testing.F) {
	attached := wire.Attached{ID: 1, Session: "0198c0de00007000800000000000beef", Epoch: testEpoch, Lease: "l", Generation: 1, NextSequence: 9, LostBefore: 1}
	withPending := attached
	withPending.Pending = []wire.PendingRequest{{RequestID: "q", Sequence: 2}}
	part := wire.Record{Sequence: 5, Stream: wire.StreamStdout, Flags: wire.FlagMore, Data: []byte("abc")}
	rest := wire.Record{Sequence: 5, Stream: wire.StreamStdout, Offset: 3, Data: []byte("d\n")}
	f.Add(unframes(f, attached, records(line(5, "a\n"), line(6, "b\n")), records(exitRecord(f, 7))))
	f.Add(unframes(f, attached, records(part), wire.Pong{ID: 1}, records(rest)))
	f.Add(unframes(f, withPending, wire.Records{Pending: true, Records: []wire.Record{line(2, "q\n")}}, records(line(5, "a\n"))))
	f.Add(unframes(f, attached, records(part), records(line(6, "x"))))
	f.Add(unframes(f, attached, records(line(7, "x"))))
	f.Add(unframes(f, attached, wire.Fenced{Generation: 2}, records(line(5, "x"))))
	f.Add(unframes(f, records(line(5, "x")), attached))
	f.Add(unframes(f, (&wire.Error{Code: wire.CodeReplayGap, Message: "gone", LostBefore: 3}).ToMessage(0)))
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 1 << 10
		config := SessionConfig{MaxRecord: limit}
		s := config.newSession(newLink(nil, sessionTarget))
		s.options = &AttachOptions{Mode: wire.ModeWriter, From: wire.FromCursor, Cursor: &wire.Cursor{Epoch: testEpoch, Sequence: 4}}
		s.link.begin()
		next := uint64(5)
		for _, frame := range frames(data) {
			b := s.inbox.spare()
			b.frame = append(b.frame[:0], frame...)
			err := s.handle(b)
			for got, _ := s.inbox.poll(); got != nil; got, _ = s.inbox.poll() {
				for _, r := range got.records {
					if r.Sequence != next || len(r.Data) == 0 || len(r.Data) > limit {
						t.Fatalf("record %d of %d bytes comes where %d belongs", r.Sequence, len(r.Data), next)
					}
					next++
				}
				s.inbox.recycle(got)
			}
			if len(s.stream.live.data) > limit || s.stream.shownLen > limit {
				t.Fatal("more is held than the limit")
			}
			if err != nil {
				if wire.CodeOf(err) == wire.CodeInternal {
					t.Fatalf("an error without a code: %v", err)
				}
				return
			}
		}
	})
}

// Only what SaveCursor writes is read as a cursor file.
func FuzzParseCursorFile(f *testing.F) {
	f.Add([]byte("paseo-sandbox-cursor 1 0011223344556677 42\n"))
	f.Add([]byte("paseo-sandbox-cursor 1 0011223344556677 042\n"))
	f.Add([]byte("paseo-sandbox-cursor 1 0011223344556677 9007199254740992\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cursor, ok := parseCursorFile(data)
		if ok && string(data) != cursorHead+" "+string(cursor.Epoch)+" "+FormatCursor(cursor)[17:]+"\n" {
			t.Fatalf("%q was read as %+v", data, cursor)
		}
	})
}
