package session

import (
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/index"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/spool"
)

// freeStep is how many bytes wait to be freed together, unless output is
// stalled: a client that acknowledges record by record must not cost a system
// call for each.
const freeStep = 256 << 10

func (s *Session) wakeFree() { wake(s.freeWake) }

// runFree gives disk back after the floor was raised, and then lets stalled
// streams go on. It is apart from Ack so that an ack does not wait for it.
func (s *Session) runFree() {
	for {
		select {
		case <-s.stop:
			return
		case <-s.freeWake:
		}
		s.free()
		s.stdout.Resume()
		s.stderr.Resume()
	}
}

// free punches the whole pages below the floor that no pending request needs.
// The ranges are chosen under the mutex and punched outside it: the floor only
// rises, and below it a request is only ever removed, so that a range which
// may be freed once may be freed for ever.
func (s *Session) free() {
	s.mu.Lock()
	floor, from, loose := s.floor, s.freed, s.requests.loose
	waiting := floor.Ends.Stdout - from.Stdout + floor.Ends.Stderr - from.Stderr + (floor.Sequence-s.freedIndex)*index.EntrySize
	if waiting < freeStep && len(loose) == 0 && !s.stdout.Stalled() && !s.stderr.Stalled() {
		s.mu.Unlock()
		return
	}
	s.requests.loose = nil
	keep := s.requests.ranges()
	freedIndex := s.freedIndex
	s.freed, s.freedIndex = floor.Ends, floor.Sequence
	s.mu.Unlock()

	holes := spool.Holes(s.around(from.Stdout, floor.Ends.Stdout), keep, s.pageSize)
	for _, r := range loose {
		r = s.around(uint64(r.From), min(uint64(r.To+s.pageSize), floor.Ends.Stdout))
		holes = append(holes, spool.Holes(r, keep, s.pageSize)...)
	}
	s.punch(s.cfg.Set.StdoutRead, holes)
	s.punch(s.cfg.Set.StderrRead, spool.Holes(s.around(from.Stderr, floor.Ends.Stderr), nil, s.pageSize))
	if floor.Sequence > freedIndex {
		if err := s.index.Free(freedIndex, floor.Sequence, s.pageSize); err != nil {
			s.log.Error("free_failed", "error", err.Error())
		}
	}
}

// around widens a range downwards to its page's start: the bytes before it in
// the page were below an earlier floor and are free too, unless kept.
func (s *Session) around(from, to uint64) spool.Range {
	return spool.Range{From: int64(from) / s.pageSize * s.pageSize, To: int64(to)}
}

func (s *Session) punch(f *custody.File, holes []spool.Range) {
	for _, h := range holes {
		if err := f.Punch(h.From, h.To-h.From); err != nil {
			s.log.Error("free_failed", "error", err.Error())
		}
	}
}
