package session

import (
	"path/filepath"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/index"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/journal"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/spool"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// R45, R47: a request whose record could not be numbered, because the index had
// no room for all records that came with it, is pending at the sequence that
// its record gets in the end. Tries that fail take nothing of the log's reserve.
func TestRequestIsPendingWhereItsRecordIs(t *testing.T) {
	const epoch = "0011223344556677"
	fd, err := unix.MemfdCreate("index", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	file := custody.NewFile(fd, "index")
	defer file.Close()
	x, err := index.Open(file, epoch, index.Floor{})
	if err != nil {
		t.Fatal(err)
	}
	logFD, err := unix.Open(filepath.Join(t.TempDir(), "log"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	logFile := custody.NewFile(logFD, "log")
	defer logFile.Close()
	control, _, err := journal.Open(logFile, epoch, func(journal.Entry) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	s := &Session{
		cfg: Config{Epoch: epoch, SpoolLimit: 256 << 20}, log: hclog.NewNullLogger(),
		requests: newRequests(), index: x, control: control,
	}
	number := func(stream wire.Stream, pieces []spool.Piece) error {
		_, err := s.Number(stream, pieces)
		return err
	}
	line := []spool.Piece{{Length: 1}}
	for range 2 {
		if err := number(wire.StreamStderr, line); err != nil {
			t.Fatal(err)
		}
	}
	// From here on the file is a full disk behind what was allocated ahead.
	if err := unix.Ftruncate(fd, 4096+index.EntrySize+1<<20); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	batch := make([]spool.Piece, index.MaxBatch)
	for i := range batch {
		batch[i].Length = 1
	}
	for number(wire.StreamStderr, batch) == nil {
	}
	batch[0] = spool.Piece{Length: 1, Request: "a"}
	size, err := logFile.Size()
	if err != nil {
		t.Fatal(err)
	}
	if number(wire.StreamStdout, batch) == nil {
		t.Fatal("the index has room for ever")
	}
	if after, err := logFile.Size(); err != nil || after != size {
		t.Errorf("the try took %d bytes of the log, %v", after-size, err)
	}
	if err := number(wire.StreamStderr, line); err != nil {
		t.Fatal(err)
	}
	want := x.Next()
	if err := number(wire.StreamStdout, batch[:1]); err != nil {
		t.Fatal(err)
	}
	if got := s.requests.list(x.Next()); len(got) != 1 || got[0].Sequence != want {
		t.Errorf("pending %+v, want the record %d", got, want)
	}
}
