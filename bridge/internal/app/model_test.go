package app_test

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/rig"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"pgregory.net/rapid"
)

// modelClient is a client, and what the model knows of it.
type modelClient struct {
	*rig.Client
	next uint64 // sequence that has to come next
	sent uint64 // what it may acknowledge
}

// model is a reference for one session, and the session itself. It is a
// handful of plain values that no crash touches.
type model struct {
	tb testing.TB
	r  *rig.Rig
	b  *killed

	lines      []string // record n is lines[n-1]
	acked      uint64
	generation uint64
	writer     *modelClient
	clients    []*modelClient
	inputs     map[string]string
	accepted   []byte
	closed     bool
	pending    []string
	answered   map[string]bool

	mu  sync.Mutex
	got []byte // by the agent
}

func newModel(tb testing.TB) *model {
	m := &model{tb: tb, inputs: make(map[string]string), answered: make(map[string]bool)}
	m.r = rig.New(tb, rig.Options{Framing: wire.FramingPi, MaxRecord: 1 << 20, SpoolLimit: 32 << 20, MaxInput: 1 << 20})
	m.b = launch(tb, m.r)
	m.b.WaitReady()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		part := make([]byte, 64<<10)
		for {
			n, err := m.r.AgentStdin.Read(part)
			m.mu.Lock()
			m.got = append(m.got, part[:n]...)
			m.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	// The agent's reader ends when nobody holds the other end any more.
	tb.Cleanup(func() {
		m.b.kill(tb)
		m.r.Drop()
		<-ended
	})
	return m
}

func (m *model) fail(format string, args ...any) { m.tb.Fatalf(format, args...) }

// until polls a bridge's status.
func (m *model) until(what string, holds func(wire.Status) bool) {
	c := m.r.Connect()
	defer c.Close()
	eventually(m.tb, what, func() bool { return holds(c.Inspect()) })
}

func (m *model) print(line string) {
	if _, err := m.r.AgentStdout.WriteString(line); err != nil {
		m.fail("print: %v", err)
	}
	m.lines = append(m.lines, line)
	m.until("a line to be numbered", func(st wire.Status) bool { return st.NextSequence == uint64(len(m.lines))+1 })
}

func (m *model) ask(id string) {
	m.print(dialog(id, "confirm"))
	m.pending = append(m.pending, id)
}

// attach tries to join at a place and reports what it must.
func (m *model) attach(mode wire.Mode, from wire.From, cursor uint64, takeover bool) {
	c := &modelClient{Client: m.r.Connect()}
	a := wire.Attach{Mode: mode, From: from, Takeover: takeover && mode == wire.ModeWriter}
	end := uint64(len(m.lines))
	var want wire.Code
	switch from {
	case wire.FromOldest:
		c.next, c.sent = m.acked+1, m.acked
	case wire.FromLive:
		c.next, c.sent = end+1, m.acked
	default:
		a.Cursor = &wire.Cursor{Epoch: m.r.Epoch, Sequence: cursor}
		c.next, c.sent = cursor+1, cursor
		if cursor > end {
			want = wire.CodeInvalidCursor
		} else if cursor < m.acked {
			want = wire.CodeReplayGap
		}
	}
	if want == "" && mode == wire.ModeWriter && m.writer != nil && !a.Takeover {
		want = wire.CodeWriterAlreadyAttached
	}
	e := c.TryAttach(a)
	m.wantCode("attach", e, want)
	if e != nil {
		if e.Code == wire.CodeReplayGap && e.LostBefore != m.acked+1 {
			m.fail("the gap ends before %d, want %d", e.LostBefore, m.acked+1)
		}
		c.Close()
		return
	}
	if mode == wire.ModeWriter {
		m.generation++
		m.writer = c
	}
	m.clients = append(m.clients, c)
	m.checkAttached(c)
}

func (m *model) checkAttached(c *modelClient) {
	a := c.Attached
	if a.Generation != m.generation || a.NextSequence != uint64(len(m.lines))+1 || a.Acked != m.acked || a.LostBefore != m.acked+1 || a.InputClosed != m.closed || (a.Lease != "") != (m.writer == c) {
		m.fail("attached %+v, want generation %d, %d lines, acked %d, closed %t", a, m.generation, len(m.lines), m.acked, m.closed)
	}
	if got, want := pendingIDs(a.Pending), fmt.Sprint(m.pending); len(a.Pending) != len(m.pending) {
		m.fail("pending %s, want %s", got, want)
	}
	for i, p := range a.Pending {
		if p.RequestID != m.pending[i] || m.lines[p.Sequence-1] != dialog(p.RequestID, "confirm") {
			m.fail("pending request %+v, want %s", p, m.pending[i])
		}
	}
}

func (m *model) wantCode(what string, e *wire.Error, want wire.Code) {
	var got wire.Code
	if e != nil {
		got = e.Code
	}
	if got != want {
		m.fail("%s: got %q (%v), want %q", what, got, e, want)
	}
}

// read takes everything that is there for a client. One that an ack has
// overtaken may be told so instead.
func (m *model) read(c *modelClient) {
	for c.next <= uint64(len(m.lines)) {
		for _, rec := range c.Records {
			if rec.Pending {
				continue
			}
			if rec.Sequence != c.next || string(rec.Data) != m.lines[c.next-1] {
				m.fail("record %d is %.40q, want %d: %.40q", rec.Sequence, rec.Data, c.next, m.lines[c.next-1])
			}
			c.next, c.sent = c.next+1, rec.Sequence
		}
		c.Records = nil
		if c.next > uint64(len(m.lines)) {
			return
		}
		if err := c.Step(); err != nil {
			if e, ok := err.(*wire.Error); ok && e.Code == wire.CodeReplayGap && c.next <= m.acked && e.LostBefore <= m.acked+1 {
				m.drop(c)
				return
			}
			m.fail("read record %d: %v", c.next, err)
		}
	}
}

// drop forgets a client whose connection has ended.
func (m *model) drop(c *modelClient) {
	c.Close()
	for i := range m.clients {
		if m.clients[i] == c {
			m.clients = append(m.clients[:i:i], m.clients[i+1:]...)
			break
		}
	}
	if m.writer == c {
		m.writer = nil
	}
	m.until("the seat to be given back", func(st wire.Status) bool { return st.HasWriter == (m.writer != nil) })
}

// refusal is what every right of a client without the seat gets.
func (m *model) refusal(c *modelClient) wire.Code {
	if m.writer != c {
		return wire.CodeStaleWriter
	}
	return ""
}

func (m *model) ack(c *modelClient, sequence uint64) {
	m.read(c)
	if c.NC == nil || !m.has(c) {
		return
	}
	want := m.refusal(c)
	if want == "" && sequence > c.sent {
		want = wire.CodeInvalidAck
	}
	got, e := c.Ack(sequence)
	m.wantCode("ack", e, want)
	if e == nil {
		m.acked = max(m.acked, sequence)
		if got != m.acked {
			m.fail("acked %d, want %d", got, m.acked)
		}
	}
}

func (m *model) has(c *modelClient) bool {
	for _, k := range m.clients {
		if k == c {
			return true
		}
	}
	return false
}

// input gives an input, and with answer an answer to that request.
func (m *model) input(c *modelClient, id, payload, answer string) {
	want := m.refusal(c)
	old, known := m.inputs[id]
	switch {
	case want != "":
	case known && old != payload:
		want = wire.CodeInputIDConflict
	case known:
	case payload[len(payload)-1] != '\n':
		want = wire.CodeInvalidInput
	case m.closed:
		want = wire.CodeRuntimeNotWritable
	case m.answered[answer]:
		want = wire.CodeRequestAnswered
	}
	duplicate, e := c.Input(id, []byte(payload))
	m.wantCode("input "+id, e, want)
	if e != nil {
		return
	}
	if duplicate != known {
		m.fail("input %s: duplicate %t", id, duplicate)
	}
	if known {
		return
	}
	m.inputs[id] = payload
	m.accepted = append(m.accepted, payload...)
	for i, p := range m.pending {
		if p == answer {
			m.pending = append(m.pending[:i:i], m.pending[i+1:]...)
			m.answered[p] = true
			break
		}
	}
}

func (m *model) closeInput(c *modelClient) {
	want := m.refusal(c)
	m.wantCode("closeInput", c.CloseInput(), want)
	m.closed = m.closed || want == ""
}

func (m *model) release(c *modelClient) {
	m.wantCode("release", ask(c.Client, func(id uint64) wire.Message { return wire.Release{ID: id, Lease: c.Attached.Lease} }), m.refusal(c))
	if m.writer == c {
		m.writer = nil
	}
}

// crash kills the bridge, and every connection with it.
func (m *model) crash() {
	m.b = m.b.replace(m.tb, m.r)
	m.b.WaitReady()
	for _, c := range m.clients {
		c.Close()
	}
	m.clients, m.writer = nil, nil
}

// check compares what status says.
func (m *model) check() {
	c := m.r.Connect()
	defer c.Close()
	st := c.Inspect()
	ids := make([]string, len(st.Pending))
	for i, p := range st.Pending {
		ids[i] = p.RequestID
	}
	if st.Generation != m.generation || st.HasWriter != (m.writer != nil) || st.NextSequence != uint64(len(m.lines))+1 ||
		st.Acked != m.acked || st.InputAccepted != uint64(len(m.accepted)) || st.InputClosed != m.closed || fmt.Sprint(ids) != fmt.Sprint(m.pending) {
		m.fail("status %+v; want generation %d, writer %t, %d lines, acked %d, %d bytes of input, closed %t, pending %v",
			st, m.generation, m.writer != nil, len(m.lines), m.acked, len(m.accepted), m.closed, m.pending)
	}
}

// finish reads everything that is left and compares the agent's input.
func (m *model) finish() {
	for _, c := range append([]*modelClient(nil), m.clients...) {
		m.read(c)
	}
	m.attach(wire.ModeObserver, wire.FromOldest, 0, false)
	m.read(m.clients[len(m.clients)-1])
	eventually(m.tb, "the agent to get its input", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.got) >= len(m.accepted)
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	if !bytes.Equal(m.got, m.accepted) {
		m.fail("the agent got %d bytes, %d were accepted, or they differ", len(m.got), len(m.accepted))
	}
}

var inputs = []string{
	`{"type":"x"}` + "\n", `{"type":"y"}` + "\n" + `{"type":"z"}` + "\n", `{"type":"no end"}`,
	`{"type":"long","text":"` + strings.Repeat("f", 600_000) + `"}` + "\n",
}

// R41, R42, R43, R45, R48: whatever clients and crashes do, in whatever order,
// the session is what a handful of plain values says.
func TestModel(t *testing.T) {
	setChecks(t)
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(propertyTB{TB: t, rt: rt})
		pick := func(rt *rapid.T) *modelClient {
			if len(m.clients) == 0 {
				m.attach(wire.ModeWriter, wire.FromOldest, 0, false)
			}
			return rapid.SampledFrom(m.clients).Draw(rt, "client")
		}
		place := func(rt *rapid.T, what string) uint64 {
			return rapid.Uint64Range(0, uint64(len(m.lines))+1).Draw(rt, what)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { m.check() },
			"print": func(rt *rapid.T) {
				m.print(rapid.SampledFrom([]string{"\n", "a line\n", "\x00\xff\u2028\r\n", string(bytes.Repeat([]byte("long"), 100_000)) + "\n"}).Draw(rt, "line"))
			},
			"dialog": func(*rapid.T) { m.ask(fmt.Sprint("d", len(m.lines))) },
			"attach": func(rt *rapid.T) {
				if len(m.clients) >= 4 {
					m.drop(m.clients[0])
				}
				mode := rapid.SampledFrom([]wire.Mode{wire.ModeWriter, wire.ModeObserver}).Draw(rt, "mode")
				from := rapid.SampledFrom([]wire.From{wire.FromOldest, wire.FromCursor, wire.FromLive}).Draw(rt, "from")
				m.attach(mode, from, place(rt, "cursor"), rapid.Bool().Draw(rt, "takeover"))
			},
			"read": func(rt *rapid.T) { m.read(pick(rt)) },
			"ack":  func(rt *rapid.T) { m.ack(pick(rt), place(rt, "sequence")) },
			"input": func(rt *rapid.T) {
				payload := rapid.SampledFrom(inputs).Draw(rt, "payload")
				m.input(pick(rt), fmt.Sprint("i", rapid.IntRange(0, 5).Draw(rt, "id")), payload, "")
			},
			"answer": func(rt *rapid.T) {
				id := fmt.Sprint("d", rapid.IntRange(0, max(0, len(m.lines)-1)).Draw(rt, "request"))
				m.input(pick(rt), "answer "+id+fmt.Sprint(rapid.IntRange(0, 1).Draw(rt, "try")), answerTo(id), id)
			},
			"half": func(rt *rapid.T) {
				// Half of an input, and the end of its connection.
				c := pick(rt)
				c.Send(wire.Input{ID: c.NextID(), Lease: c.Attached.Lease, InputID: "half", More: true, Data: []byte("half")})
				m.drop(c)
			},
			"closeInput": func(rt *rapid.T) {
				if rapid.IntRange(0, 3).Draw(rt, "seldom") == 0 {
					m.closeInput(pick(rt))
				}
			},
			"release": func(rt *rapid.T) { m.release(pick(rt)) },
			"detach":  func(rt *rapid.T) { m.drop(pick(rt)) },
			"crash":   func(*rapid.T) { m.crash() },
		})
		m.finish()
	})
}
