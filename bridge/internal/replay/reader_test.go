package replay

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/index"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func open(t testing.TB, path string) *custody.File {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f := custody.NewFile(fd, filepath.Base(path))
	t.Cleanup(func() { f.Close() })
	return f
}

func newSource(t testing.TB) *Source {
	t.Helper()
	dir := t.TempDir()
	x, err := index.Open(open(t, filepath.Join(dir, "index")), "0011223344556677", index.Floor{})
	if err != nil {
		t.Fatal(err)
	}
	return &Source{
		Index: x, Stdout: open(t, filepath.Join(dir, "stdout")), Stderr: open(t, filepath.Join(dir, "stderr")),
		Floor: new(atomic.Uint64), Exit: func() []byte { return []byte("exit") },
	}
}

// put adds a record.
func put(t testing.TB, s *Source, stream wire.Stream, flags wire.Flags, data []byte) {
	file := s.Stdout
	if stream == wire.StreamStderr {
		file = s.Stderr
	}
	if stream != wire.StreamExit {
		if _, err := file.WriteAt(data, int64(s.Index.Ends().Of(stream))); err != nil {
			t.Error(err)
		}
	}
	if err := s.Index.Append(stream, 1, func(int) (uint32, wire.Flags) { return uint32(len(data)), flags }, nil); err != nil {
		t.Error(err)
	}
}

// R41: the frames are what the codec makes of the records, within the client's
// limit, and last names the records that are complete.
func TestFrames(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSource(t)
		var want []wire.Record
		n := rapid.IntRange(1, 60).Draw(rt, "n")
		for i := range n {
			stream := rapid.SampledFrom([]wire.Stream{wire.StreamStdout, wire.StreamStderr}).Draw(rt, "stream")
			flags := rapid.SampledFrom([]wire.Flags{0, wire.FlagContinued}).Draw(rt, "flags")
			size := rapid.SampledFrom([]int{1, 23, 24, 255, 256, 5000, directSize - 1, directSize, 65535, 65536, wire.MaxFragment, wire.MaxFragment + 1, 700_000}).Draw(rt, "size")
			data := bytes.Repeat([]byte{byte(i + 1)}, size)
			if i == n-1 && rapid.Bool().Draw(rt, "exit") {
				stream, flags, data = wire.StreamExit, 0, s.Exit()
			}
			put(t, s, stream, flags, data)
			want = append(want, wire.Record{Sequence: uint64(i + 1), Stream: stream, Flags: flags, Data: data})
		}
		limit := rapid.SampledFrom([]int{wire.MinPeerFrame, wire.MaxFragment, wire.MaxBridgeFrame}).Draw(rt, "limit")
		r := NewReader(s, 1)
		var at, offset int
		for at < len(want) {
			frame, last, err := r.Frame(limit)
			if err != nil || frame == nil {
				rt.Fatalf("no frame at record %d: %v", at+1, err)
			}
			payload, err := wire.ReadFrame(bytes.NewReader(frame), limit, nil)
			if err != nil {
				rt.Fatal(err)
			}
			m, err := wire.DecodeRecords(payload)
			if err != nil || !bytes.Equal(wire.AppendRecords(nil, m), payload) {
				rt.Fatalf("the frame is not what the codec makes: %v", err)
			}
			var complete uint64
			for _, rec := range m.Records {
				w := want[at]
				end := offset + len(rec.Data)
				flags := w.Flags
				if end < len(w.Data) {
					flags |= wire.FlagMore
				}
				if rec.Sequence != w.Sequence || rec.Stream != w.Stream || rec.Flags != flags || rec.Offset != uint64(offset) || !bytes.Equal(rec.Data, w.Data[offset:end]) {
					rt.Fatalf("record %d at offset %d came as %d at %d", w.Sequence, offset, rec.Sequence, rec.Offset)
				}
				if offset = end; end == len(w.Data) {
					complete, at, offset = w.Sequence, at+1, 0
				}
			}
			if last != complete {
				rt.Fatalf("last is %d, want %d", last, complete)
			}
		}
		if frame, _, err := r.Frame(limit); frame != nil || err != nil {
			rt.Fatalf("a frame after the end: %v", err)
		}
	})
}

// R47: a reader that races the freeing gets right bytes or is told that it was
// overtaken, never zeros.
func TestPunchRace(t *testing.T) {
	s := newSource(t)
	const page = 4096
	const rounds, batch = 300, 64
	var wg sync.WaitGroup
	done := make(chan struct{})
	for reader := range 3 {
		rng := rand.New(rand.NewPCG(uint64(reader), 7))
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				// Near the floor, where the race is.
				r := NewReader(s, s.Floor.Load()+1+rng.Uint64N(4))
				for range 8 {
					frame, _, err := r.Frame(64<<10 + rng.IntN(200<<10))
					if errors.Is(err, ErrOvertaken) || err == nil && frame == nil {
						break
					}
					if err != nil {
						t.Error(err)
						return
					}
					m, err := wire.DecodeRecords(frame[4:])
					if err != nil {
						t.Error(err)
						return
					}
					for _, rec := range m.Records {
						if bytes.Count(rec.Data, []byte{byte(rec.Sequence%255) + 1}) != len(rec.Data) {
							t.Errorf("record %d came with other bytes", rec.Sequence)
							return
						}
					}
				}
			}
		})
	}
	freed := uint64(0)
	for range rounds {
		for range batch {
			n := s.Index.Next()
			size := 3000
			if n%5 == 0 {
				size = 20_000
			}
			put(t, s, wire.StreamStdout, 0, bytes.Repeat([]byte{byte(n%255) + 1}, size))
		}
		floor := s.Index.Next() - 1 - batch/2
		e, err := s.Index.Entry(floor)
		if err != nil {
			t.Fatal(err)
		}
		s.Floor.Store(floor)
		if err := s.Stdout.Punch(0, int64(e.Ends.Stdout)/page*page); err != nil {
			t.Fatal(err)
		}
		if err := s.Index.Free(freed, floor, page); err != nil {
			t.Fatal(err)
		}
		freed = floor
	}
	close(done)
	wg.Wait()
}
