package session

import (
	"crypto/sha256"
	"fmt"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/journal"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

const (
	// backlog is how much accepted input may wait for the agent to read it,
	// beside one input of any size, in bytes.
	backlog = 64 << 20
	// smallInput is what is still accepted when the control log is down to
	// its reserve: an abort, an answer.
	smallInput = 4 << 10
)

// Input takes one whole input into custody and reports whether it had been
// accepted before (R43). Errors: CodeStaleWriter, CodeInputTooLarge,
// CodeInvalidInput, CodeInputIDConflict, CodeRequestAnswered,
// CodeRuntimeNotWritable, CodeStorageFull; with any of them nothing was
// accepted.
func (s *Session) Input(c *Client, lease, id string, payload []byte) (duplicate bool, err error) {
	if err := s.CheckInputSize(len(payload)); err != nil {
		return false, err
	}
	hash := sha256.Sum256(payload)
	answers, refused := s.profile.Input(payload)

	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mayWrite(c, lease); err != nil {
		return false, err
	}
	if old, ok := s.inputs[id]; ok {
		if old.hash != hash || old.length != uint64(len(payload)) {
			return false, &wire.Error{
				Code:    wire.CodeInputIDConflict,
				Message: fmt.Sprintf("the input id %.128q was accepted before, with other bytes", id),
				Advice:  "choose a new id for each input and keep it only to send the same bytes again",
			}
		}
		return true, nil
	}
	if refused != nil {
		return false, refused
	}
	if err := s.writable(len(payload)); err != nil {
		return false, err
	}
	answered, err := s.match(answers)
	if err != nil {
		return false, err
	}
	if err := s.commit(id, hash, payload, answered); err != nil {
		return false, err
	}
	s.input.wakeUp()
	return false, nil
}

// CheckInputSize refuses an input, or what has come of it, above the limit.
// Error: CodeInputTooLarge.
func (s *Session) CheckInputSize(n int) error {
	if uint64(n) <= s.cfg.MaxInput {
		return nil
	}
	return &wire.Error{
		Code:    wire.CodeInputTooLarge,
		Message: fmt.Sprintf("the input is longer than %d bytes", s.cfg.MaxInput),
		Advice:  "send less at once, or raise the profile's limit",
	}
}

func (s *Session) writable(n int) error {
	if s.closed || s.gone || s.input.broken.Load() {
		return &wire.Error{
			Code:    wire.CodeRuntimeNotWritable,
			Message: "the agent's standard input is closed",
			Advice:  "start a new session",
		}
	}
	if waiting := s.data.End() - s.input.delivered.Load(); waiting > 0 && waiting+int64(n) > backlog+int64(s.cfg.MaxInput) {
		return &wire.Error{
			Code:    wire.CodeStorageFull,
			Message: fmt.Sprintf("%d bytes of accepted input wait for the agent to read them", waiting),
			Advice:  "send again when the agent has read some of it, or end it",
		}
	}
	if err := s.control.Reserve(); err != nil && n > smallInput {
		return storageFull("the input", err)
	}
	return nil
}

// match finds the pending requests that the answers mean. An id that was never
// asked passes: the agent drops it.
func (s *Session) match(answers []string) ([]*request, error) {
	var found []*request
	seen := make(map[string]bool, len(answers))
	for _, id := range answers {
		_, before := s.requests.answered[sha256.Sum256([]byte(id))]
		q := s.requests.open[id]
		if q == nil && !before {
			continue
		}
		if q == nil || seen[id] {
			return nil, &wire.Error{
				Code:    wire.CodeRequestAnswered,
				Message: fmt.Sprintf("the request %.128q has been answered; the first answer counts", id),
				Advice:  "drop this answer",
			}
		}
		seen[id] = true
		found = append(found, q)
	}
	if len(found) > journal.MaxAnswers {
		return nil, &wire.Error{
			Code:    wire.CodeInvalidInput,
			Message: fmt.Sprintf("the input answers %d requests, the limit is %d", len(found), journal.MaxAnswers),
			Advice:  "send the answers as several inputs",
		}
	}
	return found, nil
}

// commit writes the bytes and then the entry, which is the commit.
func (s *Session) commit(id string, hash [32]byte, payload []byte, answered []*request) error {
	if err := s.data.Write(payload); err != nil {
		return storageFull("the input", err)
	}
	e := journal.Input{ID: id, Hash: hash, Start: uint64(s.data.End()), Length: uint64(len(payload)), Generation: s.generation}
	for _, q := range answered {
		e.Answers = append(e.Answers, q.sequence)
	}
	if err := s.control.Append(e); err != nil {
		return storageFull("the input", err)
	}
	s.data.Commit(len(payload))
	s.inputs[id] = accepted{hash: hash, length: uint64(len(payload))}
	for _, q := range answered {
		s.requests.answer(q)
	}
	if len(answered) > 0 {
		s.pinnedBytes.Store(s.requests.bytesBelow(int64(s.floor.Ends.Stdout)))
		s.wakeFree()
	}
	return nil
}

// CloseInput records that no input follows. The channel is closed when the
// agent's input is drained and the bridge's end of the pipe is closed; then
// InputClosed tells the rest. Errors: CodeStaleWriter, CodeStorageFull.
func (s *Session) CloseInput(c *Client, lease string) (<-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mayWrite(c, lease); err != nil {
		return nil, err
	}
	return s.input.drained, s.closeInput()
}

func (s *Session) closeInput() error {
	if s.closed || s.gone {
		return nil
	}
	if err := s.control.Append(journal.CloseInput{End: uint64(s.data.End()), Generation: s.generation}); err != nil {
		return storageFull("the end of input", err)
	}
	s.closed = true
	s.input.wakeUp()
	return nil
}
