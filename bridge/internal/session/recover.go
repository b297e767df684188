package session

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/index"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/journal"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/profile"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/replay"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/spool"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// recover rebuilds the state from the files, in an order that CUSTODY.md
// argues for: log, index, input, streams.
func (s *Session) recover() error {
	var history history
	var err error
	if s.control, s.floor, err = journal.Open(s.cfg.Set.ControlLog, s.cfg.Epoch, func(e journal.Entry) error {
		return s.replayEntry(e, &history)
	}); err != nil {
		return damaged(err)
	}
	if err := s.control.Reserve(); errors.Is(err, unix.EOPNOTSUPP) {
		return badConfig("the spool's file system can't allocate ahead (fallocate)")
	}
	s.floorSequence.Store(s.floor.Sequence)
	s.floorBytes.Store(int64(s.floor.Ends.Stdout + s.floor.Ends.Stderr))
	if s.index, err = index.Open(s.cfg.Set.Index, s.cfg.Epoch, s.floor.Floor); err != nil {
		return damaged(err)
	}
	if err := s.recoverInput(history.inputEnd); err != nil {
		return err
	}
	if err := s.recoverRequests(history); err != nil {
		return damaged(err)
	}
	if s.recorded, err = s.findExitRecord(); err != nil {
		return damaged(err)
	}
	if err := s.recoverStreams(); err != nil {
		return damaged(err)
	}
	s.source = replay.Source{
		Index: s.index, Stdout: s.cfg.Set.StdoutRead, Stderr: s.cfg.Set.StderrRead,
		Floor: &s.floorSequence, Exit: s.exitRecord,
	}
	if s.recorded {
		return nil
	}
	// Within a stream the order is exact; across streams it is that of
	// observation, and this is when these bytes are observed.
	if err := s.stdout.Recover(); err != nil {
		return damaged(err)
	}
	if err := s.stderr.Recover(); err != nil {
		return damaged(err)
	}
	return nil
}

// history is what the entries of the log add up to beside the session's state.
type history struct {
	inputEnd uint64
	requests []journal.Request
	answered map[uint64]bool
}

func (s *Session) replayEntry(e journal.Entry, h *history) error {
	switch e := e.(type) {
	case journal.Input:
		if _, twice := s.inputs[e.ID]; twice || e.Start != h.inputEnd {
			return fmt.Errorf("%w: the input %q does not follow the one before", journal.ErrCorrupt, e.ID)
		}
		s.inputs[e.ID] = accepted{hash: e.Hash, length: e.Length}
		h.inputEnd += e.Length
		for _, a := range e.Answers {
			if h.answered == nil {
				h.answered = make(map[uint64]bool)
			}
			h.answered[a] = true
		}
	case journal.CloseInput:
		s.closed = true
	case journal.Generation:
		s.generation = e.Number
	case journal.Request:
		h.requests = append(h.requests, e)
	case journal.Exit:
		exit, err := wire.DecodeExit(e.Data)
		if err != nil {
			return fmt.Errorf("%w: %w", journal.ErrCorrupt, err)
		}
		s.exit, s.exitData, s.gone = &exit, e.Data, true
	}
	return nil
}

func (s *Session) recoverInput(end uint64) error {
	delivered, err := s.cfg.Set.InputSplice.Offset()
	if err != nil {
		return damaged(err)
	}
	if delivered > int64(end) {
		return damaged(fmt.Errorf("%d bytes of input were delivered and %d accepted", delivered, end))
	}
	if s.data, err = journal.OpenData(s.cfg.Set.InputData, end); err != nil {
		return damaged(err)
	}
	if s.cfg.Set.Stdin == nil && !s.closed {
		return badConfig("standard input is missing though it was never closed")
	}
	s.input = newInputPump(delivered)
	return nil
}

// recoverRequests finds the requests that still wait. An entry whose record
// never got its index entry is void: the record is numbered again, and its
// request logged again, with the sequence that it gets then.
func (s *Session) recoverRequests(h history) error {
	next := s.index.Next()
	last := make(map[uint64]int, len(h.requests))
	for i, e := range h.requests {
		last[e.End] = i
	}
	for i, e := range h.requests {
		if e.Sequence >= next || last[e.End] != i {
			continue
		}
		if e.Sequence > s.floor.Sequence {
			x, err := s.index.Entry(e.Sequence)
			if err != nil {
				return err
			}
			if x.Stream != wire.StreamStdout || x.Ends.Stdout != e.End || uint64(x.Length) != e.Length {
				continue
			}
		}
		if h.answered[e.Sequence] {
			s.requests.answered[e.Hash] = struct{}{}
			continue
		}
		id, err := s.requestID(e)
		if err != nil {
			return err
		}
		delete(s.requests.answered, e.Hash)
		s.requests.add(&request{id: id, hash: e.Hash, sequence: e.Sequence, from: int64(e.End - e.Length), to: int64(e.End)})
	}
	s.pinnedBytes.Store(s.requests.bytesBelow(int64(s.floor.Ends.Stdout)))
	return nil
}

// findExitRecord reports whether the last record is that of the exit.
func (s *Session) findExitRecord() (bool, error) {
	last := s.index.Next() - 1
	if s.exit == nil || last == 0 {
		return false, nil
	}
	e, err := s.index.Entry(last)
	return e.Stream == wire.StreamExit, err
}

// requestID reads a request's id from its record, which nothing frees before
// it is answered.
func (s *Session) requestID(e journal.Request) (string, error) {
	if e.Length > profile.MaxRequest || e.Length > e.End {
		return "", fmt.Errorf("%w: the request at record %d is too long", journal.ErrCorrupt, e.Sequence)
	}
	record := make([]byte, e.Length)
	if _, err := s.cfg.Set.StdoutRead.ReadAt(record, int64(e.End-e.Length)); err != nil {
		return "", err
	}
	id := s.profile.Request(record)
	if id == "" || sha256.Sum256([]byte(id)) != e.Hash {
		return "", fmt.Errorf("%w: the record %d is not the request that the log names", journal.ErrCorrupt, e.Sequence)
	}
	return id, nil
}

func (s *Session) recoverStreams() error {
	ends := s.index.Ends()
	stdout := spool.Config{
		ID: wire.StreamStdout, Pipe: s.cfg.Set.Stdout, Splice: s.cfg.Set.StdoutSpool, Read: s.cfg.Set.StdoutRead,
		MaxRecord: int64(s.cfg.MaxRecord), Sink: s, OnStall: s.stallLogger("stdout"),
	}
	if s.profile.HasRequests() {
		stdout.Request, stdout.MaxRequest = s.profile.Request, profile.MaxRequest
	}
	stderr := spool.Config{
		ID: wire.StreamStderr, Pipe: s.cfg.Set.Stderr, Splice: s.cfg.Set.StderrSpool, Read: s.cfg.Set.StderrRead,
		MaxRecord: int64(min(s.cfg.MaxRecord, maxStderrRecord)), Sink: s, OnStall: s.stallLogger("stderr"),
	}
	var err error
	if s.stdout, err = spool.New(stdout, ends.Stdout); err != nil {
		return err
	}
	s.stderr, err = spool.New(stderr, ends.Stderr)
	return err
}

// stallLogEvery bounds the lines about stalls: an agent at the limit stalls
// with every ack, and must not fill the log. Status always tells.
const stallLogEvery = time.Minute

// stallLogger returns a stream's OnStall; the stream calls it from one
// goroutine at a time.
func (s *Session) stallLogger(stream string) func(error) {
	var last time.Time
	var logged bool
	return func(reason error) {
		switch {
		case reason != nil && time.Since(last) >= stallLogEvery:
			last, logged = time.Now(), true
			s.log.Warn("output_stalled", "stream", stream, "reason", reason.Error())
		case reason == nil && logged:
			logged = false
			s.log.Info("output_resumed", "stream", stream)
		}
	}
}

func damaged(err error) *wire.Error {
	return &wire.Error{
		Code:    wire.CodeInternal,
		Message: "the session's files can't be recovered",
		Advice:  "keep the files for a diagnosis and delete the session; its output up to the damage is in them",
		Err:     err,
	}
}
