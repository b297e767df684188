package spool

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// sink numbers what it is let to.
type sink struct {
	mu     sync.Mutex
	pieces []Piece
	allow  int // records that still get a number
	room   int64
}

var errFull = errors.New("full")

func (s *sink) Number(_ wire.Stream, pieces []Piece) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(pieces), s.allow)
	s.allow -= n
	s.pieces = append(s.pieces, pieces[:n]...)
	if n < len(pieces) {
		return n, errFull
	}
	return n, nil
}

func (s *sink) Room() (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.room == 0 {
		return 0, errFull
	}
	return s.room, nil
}

func (s *sink) set(allow int, room int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.allow, s.room = allow, room
}

func (s *sink) numbered() []Piece {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.pieces)
}

type pipes struct {
	dir    string
	agent  *os.File
	config Config
}

func open(t testing.TB, path string, flags int) *custody.File {
	t.Helper()
	fd, err := unix.Open(path, flags|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f := custody.NewFile(fd, filepath.Base(path))
	t.Cleanup(func() { f.Close() })
	return f
}

func newPipes(t testing.TB, s Sink, maxRecord int64) pipes {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	pipe, err := custody.NewPipe(p[0], "stdout")
	if err != nil {
		t.Fatal(err)
	}
	agent := os.NewFile(uintptr(p[1]), "agent")
	t.Cleanup(func() { agent.Close(); pipe.Close() })
	dir := t.TempDir()
	path := filepath.Join(dir, "spool")
	return pipes{dir: dir, agent: agent, config: Config{
		ID: wire.StreamStdout, Pipe: pipe, Splice: open(t, path, unix.O_WRONLY), Read: open(t, path, unix.O_RDWR), MaxRecord: maxRecord, Sink: s,
	}}
}

// model cuts bytes into pieces the plain way.
func model(b []byte, max int) []Piece {
	var all []Piece
	for len(b) > 0 {
		n := bytes.IndexByte(b, '\n') + 1
		if n == 0 {
			n = len(b)
		}
		for rest := n; rest > 0; {
			p := Piece{Length: uint32(min(rest, max))}
			if rest > max {
				p.Flags = wire.FlagContinued
			}
			rest -= int(p.Length)
			all = append(all, p)
		}
		b = b[n:]
	}
	return all
}

// R41, R49: however the bytes arrive, and wherever the sink refuses, the
// records are the same, and the spool holds the bytes.
func TestRecordsDoNotDependOnTiming(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		max := rapid.IntRange(1, 40).Draw(rt, "max")
		s := &sink{allow: rapid.IntRange(0, 20).Draw(rt, "allow"), room: int64(rapid.IntRange(1, 100).Draw(rt, "room"))}
		p := newPipes(t, s, int64(max))
		st, err := New(p.config, 0)
		if err != nil {
			rt.Fatal(err)
		}
		go st.Run()
		var all []byte
		for _, part := range rapid.SliceOfN(rapid.SliceOfN(rapid.SampledFrom([]byte("ab\n\r\x00")), 1, 60), 0, 12).Draw(rt, "parts") {
			all = append(all, part...)
			if _, err := p.agent.Write(part); err != nil {
				rt.Fatal(err)
			}
		}
		p.agent.Close()
		s.set(1<<30, 1<<20)
		st.Resume()
		select {
		case <-st.Done():
		case <-time.After(time.Minute):
			rt.Fatal("the pump does not end")
		}
		if !st.Finish(nil) {
			rt.Fatal("not finished")
		}
		st.Close()
		if got, want := s.numbered(), model(all, max); !slices.Equal(got, want) {
			rt.Fatalf("pieces %+v, want %+v", got, want)
		}
		if b, err := os.ReadFile(filepath.Join(p.dir, "spool")); err != nil || !bytes.Equal(b, all) {
			rt.Fatalf("the spool holds %d bytes of %d: %v", len(b), len(all), err)
		}
	})
}

// R48: a stream is recovered from the splice description's offset and the
// index's end; what was taken and not numbered is numbered once.
func TestRecover(t *testing.T) {
	s := &sink{allow: 2, room: 1 << 20}
	p := newPipes(t, s, 100)
	st, err := New(p.config, 0)
	if err != nil {
		t.Fatal(err)
	}
	go st.Run()
	if _, err := p.agent.WriteString("1\n22\n333\n4444\npart"); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for !st.Stalled() && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	st.Close()
	s.set(1<<30, 1<<20)
	var p2 [2]int
	if err := unix.Pipe2(p2[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	pipe, err := custody.NewPipe(p2[0], "stdout")
	if err != nil {
		t.Fatal(err)
	}
	p.config.Pipe = pipe
	st, err = New(p.config, 5)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Recover(); err != nil {
		t.Fatal(err)
	}
	if got, want := s.numbered(), model([]byte("1\n22\n333\n4444\n"), 100); !slices.Equal(got, want) {
		t.Fatalf("pieces %+v, want %+v", got, want)
	}
	go st.Run()
	if _, err := unix.Write(p2[1], []byte("ial\n")); err != nil {
		t.Fatal(err)
	}
	unix.Close(p2[1])
	<-st.Done()
	if got := s.numbered(); got[len(got)-1].Length != 8 {
		t.Fatalf("the partial line became %+v", got[len(got)-1])
	}
	st.Close()
	if _, err := New(p.config, 1000); err == nil {
		t.Fatal("an index that is ahead of the spool is accepted")
	}
}

// The holes are whole pages of the range without a kept byte, all of them.
func TestHoles(t *testing.T) {
	const page = 16
	rapid.Check(t, func(rt *rapid.T) {
		from := rapid.Int64Range(0, 200).Draw(rt, "from")
		r := Range{from, from + rapid.Int64Range(0, 300).Draw(rt, "length")}
		var keep []Range
		for range rapid.IntRange(0, 5).Draw(rt, "n") {
			k := rapid.Int64Range(0, 500).Draw(rt, "k")
			keep = append(keep, Range{k, k + rapid.Int64Range(1, 60).Draw(rt, "kn")})
		}
		holes := Holes(r, keep, page)
		for at := int64(0); at < 600; at += page {
			free := at >= r.From && at+page <= r.To
			for _, k := range keep {
				free = free && (k.To <= at || k.From >= at+page)
			}
			punched := false
			for _, h := range holes {
				punched = punched || h.From <= at && at+page <= h.To
			}
			if free != punched {
				rt.Fatalf("page %d: may be freed %t, is freed %t; %+v without %+v gives %+v", at, free, punched, r, keep, holes)
			}
		}
		for _, h := range holes {
			if h.From%page != 0 || h.To%page != 0 || h.From >= h.To {
				rt.Fatalf("hole %+v", h)
			}
		}
	})
}
