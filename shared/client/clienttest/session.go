package clienttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// session is the state that a bridge keeps of its agent.
type session struct {
	mu sync.Mutex
	// changed is closed and made again when anything below changes.
	changed chan struct{}
	info    wire.SessionInfo
	records []wire.Record // of sequence 1 and up, whole
	floor   uint64        // records up to it are freed
	pending []wire.PendingRequest

	generation uint64
	writer     *connection
	inputs     map[string]string
	stdin      []byte
	accepted   uint64
	delivered  uint64
	closed     bool
	killed     bool
	// deaf makes reads of the input end, without killing the agent.
	deaf    bool
	exit    *wire.Exit
	lines   [3][]byte // unfinished lines, by stream
	signals chan string
}

func newSession(info wire.SessionInfo) *session {
	return &session{info: info, changed: make(chan struct{}), inputs: make(map[string]string), signals: make(chan string, 64)}
}

// change runs f under the lock and wakes who waits.
func (s *session) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// run is the agent's goroutine.
func (s *session) run(agent Agent, create wire.Create) {
	exit := agent(&Process{
		session: s, Session: s.info.Session, Create: create, Stdin: (*stdin)(s), Signals: s.signals,
		Stdout: output{s, wire.StreamStdout}, Stderr: output{s, wire.StreamStderr},
	})
	s.change(func() {
		for _, stream := range []wire.Stream{wire.StreamStdout, wire.StreamStderr} {
			if rest := s.lines[stream]; len(rest) > 0 {
				s.append(stream, rest)
			}
		}
		if s.killed {
			exit = Killed("KILL", 9)
		}
		exit.InputAccepted, exit.InputDelivered = s.accepted, s.delivered
		data, err := wire.EncodeExit(exit)
		if err != nil {
			panic(err)
		}
		s.append(wire.StreamExit, data)
		s.exit = &exit
		s.info.State, s.info.Exit = wire.StateExited, &exit
	})
}

func (s *session) append(stream wire.Stream, data []byte) {
	r := wire.Record{Sequence: uint64(len(s.records)) + 1, Stream: stream, Data: bytes.Clone(data)}
	s.records = append(s.records, r)
	if id, ok := dialog(data, "extension_ui_request"); ok {
		s.pending = append(s.pending, wire.PendingRequest{RequestID: id, Sequence: r.Sequence})
	}
}

type output struct {
	s      *session
	stream wire.Stream
}

// Write fails once the process was killed.
func (o output) Write(p []byte) (int, error) {
	killed := false
	o.s.change(func() {
		if killed = o.s.killed; killed {
			return
		}
		all := append(o.s.lines[o.stream], p...)
		for {
			line, rest, found := bytes.Cut(all, []byte("\n"))
			if !found {
				break
			}
			o.s.append(o.stream, all[:len(line)+1])
			all = rest
		}
		o.s.lines[o.stream] = all
	})
	if killed {
		return 0, fmt.Errorf("killed")
	}
	return len(p), nil
}

type stdin session

// Read waits for input, its end, or the process's.
func (i *stdin) Read(p []byte) (int, error) {
	s := (*session)(i)
	for {
		s.mu.Lock()
		n := copy(p, s.stdin)
		s.stdin = s.stdin[n:]
		s.delivered += uint64(n)
		killed, closed, changed := s.killed || s.deaf, s.closed, s.changed
		s.mu.Unlock()
		switch {
		case killed:
			return 0, fmt.Errorf("killed")
		case n > 0:
			return n, nil
		case closed:
			return 0, io.EOF
		}
		<-changed
	}
}

// signal is safe to call at any time.
func (s *session) signal(name string) {
	if name == "KILL" {
		s.change(func() { s.killed = true })
	}
	select {
	case s.signals <- name:
	default:
	}
}

// input is what Input does once its fragments are together.
func (s *session) input(id string, data []byte) (duplicate bool, err *wire.Error) {
	s.change(func() {
		old, known := s.inputs[id]
		switch {
		case known && old != string(data):
			err = &wire.Error{Code: wire.CodeInputIDConflict, Message: "this id had other bytes", Advice: "use a new id"}
		case known:
			duplicate = true
		case s.closed || s.exit != nil:
			err = &wire.Error{Code: wire.CodeRuntimeNotWritable, Message: "the input is closed", Advice: "create another session"}
		default:
			s.inputs[id] = string(data)
			s.stdin = append(s.stdin, data...)
			s.accepted += uint64(len(data))
			s.answer(data)
		}
	})
	return duplicate, err
}

// maxDialog is the longest line that is looked at as a part of a dialog.
const maxDialog = 64 << 10

// dialog returns the id of a line of this type.
func dialog(line []byte, kind string) (id string, ok bool) {
	var m struct{ Type, ID string }
	if len(line) > maxDialog || json.Unmarshal(line, &m) != nil || m.Type != kind {
		return "", false
	}
	return m.ID, true
}

func (s *session) answer(data []byte) {
	id, ok := dialog(data, "extension_ui_response")
	if !ok {
		return
	}
	for i, p := range s.pending {
		if p.RequestID == id {
			s.pending = append(s.pending[:i:i], s.pending[i+1:]...)
			return
		}
	}
}

// await waits until done holds, or quit is closed.
func (s *session) await(quit <-chan struct{}, done func() bool) bool {
	for {
		s.mu.Lock()
		ok, changed := done(), s.changed
		s.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-quit:
			return false
		}
	}
}
