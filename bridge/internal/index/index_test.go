package index

import (
	"encoding/hex"
	"errors"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"pgregory.net/rapid"
)

const epoch wire.Epoch = "0011223344556677"

type rec struct {
	stream wire.Stream
	length uint32
	flags  wire.Flags
}

func appendAll(t testing.TB, x *Index, records []rec) {
	t.Helper()
	for _, r := range records {
		if err := x.Append(r.stream, 1, func(int) (uint32, wire.Flags) { return r.length, r.flags }, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// check compares the entries from a sequence on with the records.
func check(t testing.TB, x *Index, records []rec, from int) {
	t.Helper()
	var ends Ends
	for i, r := range records {
		ends = ends.plus(r.stream, r.length)
		if i+1 < from {
			continue
		}
		want := Entry{Sequence: uint64(i + 1), Stream: r.stream, Flags: r.flags, Length: r.length, Ends: ends}
		if got, err := x.Entry(uint64(i + 1)); err != nil || got != want {
			t.Fatalf("entry %d is %+v, %v; want %+v", i+1, got, err, want)
		}
	}
	if x.Next() != uint64(len(records)+1) || x.Ends() != ends {
		t.Fatalf("next is %d with %+v, want %d with %+v", x.Next(), x.Ends(), len(records)+1, ends)
	}
}

// The layout is a promise to files that exist.
func TestLayout(t *testing.T) {
	e := Entry{Sequence: 0x01020304050607, Stream: wire.StreamStderr, Flags: wire.FlagContinued, Length: 0x0a0b0c0d,
		Ends: Ends{Stdout: 0x1112131415161718, Stderr: 0x2122232425262728}}
	var b [EntrySize]byte
	e.encode(b[:])
	const want = "1817161514131211" + "2827262524232221" + "07060504030201" + "22" + "0d0c0b0a" + "7404ae39"
	if got := hex.EncodeToString(b[:]); got != want {
		t.Errorf("entry is %s, want %s", got, want)
	}
	const head = "505342494e444558" + "01000000" + "20000000" + "30303131323233333434353536363737"
	if got := hex.EncodeToString(header(epoch)[:32]); got != head {
		t.Errorf("header is %s, want %s", got, head)
	}
}

var records = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) rec {
	return rec{
		stream: rapid.SampledFrom([]wire.Stream{wire.StreamStdout, wire.StreamStderr}).Draw(t, "stream"),
		length: rapid.Uint32Range(1, 1<<20).Draw(t, "length"),
		flags:  rapid.SampledFrom([]wire.Flags{0, wire.FlagContinued}).Draw(t, "flags"),
	}
}), 0, 40)

// R48: a file that is cut at any byte, or damaged in any byte behind its
// header, recovers to the entries before the damage, takes new ones there, and
// recovers to those again.
func TestDamagedTail(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir := t.TempDir()
		all := records.Draw(rt, "records")
		x, err := Open(open(t, dir), epoch, Floor{})
		if err != nil {
			rt.Fatal(err)
		}
		appendAll(t, x, all)
		b := read(t, dir)
		at := rapid.IntRange(headerSize, headerSize+len(all)*EntrySize).Draw(rt, "at")
		if rapid.Bool().Draw(rt, "cut") || at == len(b) {
			b = b[:at]
		} else {
			b[at] ^= byte(rapid.IntRange(1, 255).Draw(rt, "flip"))
		}
		write(t, dir, b)
		left := (at - headerSize) / EntrySize
		x, err = Open(open(t, dir), epoch, Floor{})
		if err != nil {
			rt.Fatal(err)
		}
		check(t, x, all[:left], 1)
		more := records.Draw(rt, "more")
		appendAll(t, x, more)
		whole := append(append([]rec{}, all[:left]...), more...)
		x, err = Open(open(t, dir), epoch, Floor{})
		if err != nil {
			rt.Fatal(err)
		}
		check(t, x, whole, 1)
	})
}

// R47: entries below the floor may be freed; those from the floor on stay, and
// recovery starts there.
func TestFreeAndRecover(t *testing.T) {
	dir := t.TempDir()
	x, err := Open(open(t, dir), epoch, Floor{})
	if err != nil {
		t.Fatal(err)
	}
	all := make([]rec, 5000)
	for i := range all {
		all[i] = rec{stream: wire.Stream(1 + i%2), length: uint32(1 + i%7)}
	}
	appendAll(t, x, all)
	for _, floor := range []uint64{0, 1, 128, 129, 3333, 5000} {
		var f Floor
		if floor > 0 {
			e, err := x.Entry(floor)
			if err != nil {
				t.Fatal(err)
			}
			f = Floor{Sequence: floor, Ends: e.Ends}
		}
		if err := x.Free(0, floor, 4096); err != nil {
			t.Fatal(err)
		}
		if x, err = Open(open(t, dir), epoch, f); err != nil {
			t.Fatal(err)
		}
		check(t, x, all, int(floor))
	}
	if _, err := x.Entry(1); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("a freed entry is read: %v", err)
	}
}

// A failed log entry means that nothing was numbered.
func TestBeforeFails(t *testing.T) {
	x, err := Open(open(t, t.TempDir()), epoch, Floor{})
	if err != nil {
		t.Fatal(err)
	}
	full := errors.New("full")
	piece := func(int) (uint32, wire.Flags) { return 1, 0 }
	if err := x.Append(wire.StreamStdout, 1, piece, func(uint64, Ends) error { return full }); !errors.Is(err, full) {
		t.Fatal(err)
	}
	check(t, x, nil, 1)
}

func TestOtherFiles(t *testing.T) {
	for name, b := range map[string][]byte{
		"short":   []byte("PSBINDEX"),
		"garbage": make([]byte, headerSize),
		"epoch":   header("ffffffffffffffff"),
	} {
		dir := t.TempDir()
		write(t, dir, b)
		if _, err := Open(open(t, dir), epoch, Floor{}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzOpen: no file makes recovery fail in another way than with ErrCorrupt,
// and what it recovers is stable.
func FuzzOpen(f *testing.F) {
	dir := f.TempDir()
	x, err := Open(open(f, dir), epoch, Floor{})
	if err != nil {
		f.Fatal(err)
	}
	appendAll(f, x, []rec{{wire.StreamStdout, 3, 0}, {wire.StreamStderr, 2, wire.FlagContinued}, {wire.StreamExit, 9, 0}})
	whole := read(f, dir)[headerSize:]
	f.Add(whole, uint64(0), uint64(0), uint64(0))
	f.Add(whole, uint64(1), uint64(3), uint64(0))
	f.Add(whole[:40], uint64(0), uint64(0), uint64(0))
	f.Add([]byte{}, uint64(9), uint64(9), uint64(9))
	f.Fuzz(func(t *testing.T, tail []byte, sequence, stdout, stderr uint64) {
		file := memory(t, append(header(epoch), tail...))
		floor := Floor{Sequence: sequence % (1 << 40), Ends: Ends{stdout, stderr}}
		x, err := Open(file, epoch, floor)
		if err != nil {
			t.Fatal(err)
		}
		next, ends := x.Next(), x.Ends()
		if next <= floor.Sequence || next-floor.Sequence-1 > uint64(len(tail)/EntrySize) {
			t.Fatalf("next is %d with floor %d and %d bytes", next, floor.Sequence, len(tail))
		}
		again, err := Open(file, epoch, floor)
		if err != nil || again.Next() != next || again.Ends() != ends {
			t.Fatalf("recovered again: %v, %d and %+v, before %d and %+v", err, again.Next(), again.Ends(), next, ends)
		}
	})
}
