package journal

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/index"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

const epoch wire.Epoch = "0011223344556677"

func file(t testing.TB, dir, name string) *custody.File {
	t.Helper()
	fd, err := unix.Open(filepath.Join(dir, name), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f := custody.NewFile(fd, name)
	t.Cleanup(func() { f.Close() })
	return f
}

// recovered opens the log and returns its entries.
func recovered(t testing.TB, dir string) (*Log, Floor, []Entry) {
	t.Helper()
	var all []Entry
	l, floor, err := Open(file(t, dir, "control.log"), epoch, func(e Entry) error { all = append(all, e); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return l, floor, all
}

// memory makes a file without a disk, so that a fuzzer gets anywhere.
func memory(t testing.TB, content []byte) *custody.File {
	t.Helper()
	fd, err := unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := custody.NewFile(fd, "memory")
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	return f
}

func appendAll(t testing.TB, l *Log, entries []Entry) {
	t.Helper()
	for _, e := range entries {
		if err := l.Append(e); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t testing.TB, dir string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "control.log"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t testing.TB, dir string, b []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "control.log"), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

var (
	hash   = rapid.Custom(func(t *rapid.T) [32]byte { return [32]byte(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "hash")) })
	number = rapid.Uint64()
	entry  = rapid.OneOf(
		rapid.Custom(func(t *rapid.T) Entry {
			return Input{
				ID:   rapid.StringN(1, -1, wire.MaxInputID).Draw(t, "id"),
				Hash: hash.Draw(t, "hash"), Start: number.Draw(t, "start"), Length: number.Draw(t, "length"), Generation: number.Draw(t, "generation"),
				Answers: rapid.Custom(func(t *rapid.T) []uint64 {
					a := rapid.SliceOfN(number, 0, MaxAnswers).Draw(t, "answers")
					if len(a) == 0 {
						return nil
					}
					return a
				}).Draw(t, "answers"),
			}
		}),
		rapid.Custom(func(t *rapid.T) Entry { return CloseInput{End: number.Draw(t, "end"), Generation: number.Draw(t, "g")} }),
		rapid.Custom(func(t *rapid.T) Entry {
			return Generation{Number: number.Draw(t, "n"), Client: rapid.StringN(0, -1, wire.MaxClient).Draw(t, "client")}
		}),
		rapid.Custom(func(t *rapid.T) Entry {
			return Request{Sequence: number.Draw(t, "s"), End: number.Draw(t, "e"), Length: number.Draw(t, "l"), Hash: hash.Draw(t, "h")}
		}),
		rapid.Custom(func(t *rapid.T) Entry {
			return Exit{Data: rapid.SliceOfN(rapid.Byte(), 1, maxText).Draw(t, "data")}
		}),
	)
)

// R48: what was appended is recovered, from a log cut at any byte or damaged
// in any: the entries before the damage, and none after it, ever.
func TestDamagedTail(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir := t.TempDir()
		all := rapid.SliceOfN(entry, 0, 12).Draw(rt, "entries")
		l, _, _ := recovered(t, dir)
		appendAll(t, l, all)
		b := read(t, dir)
		at := rapid.IntRange(headerSize, headerSize+len(all)*EntrySize).Draw(rt, "at")
		if rapid.Bool().Draw(rt, "cut") || at == len(b) {
			b = b[:at]
		} else {
			b[at] ^= byte(rapid.IntRange(1, 255).Draw(rt, "flip"))
		}
		write(t, dir, b)
		want := all[:(at-headerSize)/EntrySize]
		l, _, got := recovered(t, dir)
		if !reflect.DeepEqual(append([]Entry{}, got...), append([]Entry{}, want...)) {
			rt.Fatalf("recovered %+v, want %+v", got, want)
		}
		more := rapid.SliceOfN(entry, 0, 4).Draw(rt, "more")
		appendAll(t, l, more)
		_, _, got = recovered(t, dir)
		if !reflect.DeepEqual(append([]Entry{}, got...), append(append([]Entry{}, want...), more...)) {
			rt.Fatalf("recovered again %+v", got)
		}
	})
}

// R47: the floor is the last one written; a torn write of it leaves the one
// before, whatever the byte.
func TestFloor(t *testing.T) {
	dir := t.TempDir()
	l, got, _ := recovered(t, dir)
	if got != (Floor{}) {
		t.Fatalf("floor %+v at first", got)
	}
	var last Floor
	for n := range uint64(5) {
		before := read(t, dir)
		next := Floor{
			Floor: index.Floor{Sequence: 10 + n, Ends: index.Ends{Stdout: 100 + n<<40, Stderr: 1 << n}},
			Acked: 9 + n, DroppedRecords: n, DroppedBytes: n << 50,
		}
		if err := l.SetFloor(next); err != nil {
			t.Fatal(err)
		}
		after := read(t, dir)
		for i := range headerSize {
			if before[i] == after[i] {
				continue
			}
			torn := bytes.Clone(before)
			copy(torn[:i], after[:i])
			write(t, dir, torn)
			if _, got, _ := recovered(t, dir); got != last {
				t.Fatalf("floor %+v after a write torn at %d, want %+v", got, i, last)
			}
		}
		write(t, dir, after)
		l, got, _ = recovered(t, dir)
		if got != next {
			t.Fatalf("floor %+v, want %+v", got, next)
		}
		last = next
	}
}

// R43: an input id of the greatest length fits; what does not is refused, and
// nothing is written.
func TestTooLong(t *testing.T) {
	dir := t.TempDir()
	l, _, _ := recovered(t, dir)
	for _, e := range []Entry{
		Input{ID: strings.Repeat("x", maxText+1)},
		Input{ID: "x", Answers: make([]uint64, MaxAnswers+1)},
		Generation{Client: strings.Repeat("x", maxText+1)},
		Exit{Data: make([]byte, maxText+1)},
	} {
		if err := l.Append(e); !errors.Is(err, errTooLong) {
			t.Errorf("%T: %v", e, err)
		}
	}
	if _, _, got := recovered(t, dir); len(got) != 0 {
		t.Fatalf("recovered %+v", got)
	}
	// The longest exit there is.
	data, err := wire.EncodeExit(wire.Exit{Code: 255, Signal: "ABCDEFGHIJKLMNOP", Reason: wire.ReasonOutOfMemory, InputDelivered: wire.MaxInteger, InputAccepted: wire.MaxInteger})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Append(Exit{Data: data}); err != nil {
		t.Fatal(err)
	}
}

// R48: bytes that were written for an input which was never committed are
// dropped; committed ones are never touched.
func TestData(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenData(file(t, dir, "input.data"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Write([]byte("one\n")); err != nil {
		t.Fatal(err)
	}
	d.Commit(4)
	if err := d.Write([]byte("never committed")); err != nil {
		t.Fatal(err)
	}
	d, err = OpenData(file(t, dir, "input.data"), 4)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Write([]byte("two\n")); err != nil {
		t.Fatal(err)
	}
	d.Commit(4)
	if b, err := os.ReadFile(filepath.Join(dir, "input.data")); err != nil || string(b) != "one\ntwo\n" || d.End() != 8 {
		t.Fatalf("%q, %v, end %d", b, err, d.End())
	}
	if _, err := OpenData(file(t, dir, "input.data"), 9); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("a file that is too short: %v", err)
	}
}

func TestOtherFiles(t *testing.T) {
	for name, b := range map[string][]byte{
		"short": header(epoch), "zeros": make([]byte, headerSize), "epoch": append(header("ffffffffffffffff"), make([]byte, headerSize)...),
	} {
		dir := t.TempDir()
		write(t, dir, b)
		_, _, err := Open(file(t, dir, "control.log"), epoch, func(Entry) error { return nil })
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzOpen: no content makes recovery fail, and what it recovers is exactly
// what encode writes, and stable.
func FuzzOpen(f *testing.F) {
	dir := f.TempDir()
	l, _, _ := recovered(f, dir)
	appendAll(f, l, []Entry{
		Generation{Number: 1, Client: "daemon"}, Request{Sequence: 3, End: 90, Length: 30},
		Input{ID: "a", Length: 7, Generation: 1, Answers: []uint64{3}}, CloseInput{End: 7, Generation: 1}, Exit{Data: []byte{0xa0}},
	})
	whole := read(f, dir)[headerSize:]
	f.Add(whole)
	f.Add(whole[:300])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, tail []byte) {
		page := make([]byte, headerSize)
		copy(page, header(epoch))
		file := memory(t, append(page, tail...))
		var got []Entry
		if _, _, err := Open(file, epoch, func(e Entry) error { got = append(got, e); return nil }); err != nil {
			t.Fatal(err)
		}
		again := make([]byte, len(got)*EntrySize)
		for i, e := range got {
			if err := encode(again[i*EntrySize:], uint64(i+1), e); err != nil {
				t.Fatal(err)
			}
		}
		size, err := file.Size()
		if err != nil || !bytes.HasPrefix(tail, again) || size != int64(headerSize+len(again)) {
			t.Fatalf("recovered %d entries that are not the file's", len(got))
		}
	})
}
