package story

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// roleVariable makes a process that is started again from our own executable a
// daemon of the story instead.
const roleVariable = "PASEO_SANDBOX_STORY_ROLE"

// Roles of the processes that the story starts.
const (
	roleFirst  = "first"
	roleRival  = "rival"
	roleSecond = "second"
)

// daemonTimeout bounds one daemon's part of the story.
const daemonTimeout = 90 * time.Second

// event is one line that a daemon tells the story on its standard output.
type event struct {
	Name       string            `json:"name"`
	Session    *wire.SessionInfo `json:"session,omitempty"`
	Generation uint64            `json:"generation,omitempty"`
	Cursor     wire.Cursor       `json:"cursor"`
	Record     RecordSeen        `json:"record"`
	Text       string            `json:"text,omitempty"`
	Count      int               `json:"count,omitempty"`
	Yes        bool              `json:"yes,omitempty"`
	Exit       *wire.Exit        `json:"exit,omitempty"`
}

// daemonConfig is what a daemon is told, through its environment.
type daemonConfig struct {
	Role         string `json:"role"`
	BrokerSocket string `json:"brokerSocket"`
	// SessionSocket replaces the session's own socket when it is not empty.
	SessionSocket string `json:"sessionSocket,omitempty"`
	// StateDir is what survives a daemon: its cursor and what it remembers.
	StateDir string `json:"stateDir"`
	// KeepSession makes the second daemon leave without ending the session.
	KeepSession bool `json:"keepSession,omitempty"`
}

// memory is what a daemon writes down before it acts on it, so that the next
// one can go on.
type memory struct {
	Session     wire.SessionID `json:"session"`
	Lease       string         `json:"lease"`
	OnceInputID string         `json:"onceInputId"`
	OnceInput   string         `json:"onceInput"`
	DialogID    string         `json:"dialogId"`
	// LastSeen is the highest sequence that was received; the cursor file
	// holds the highest that was acknowledged.
	LastSeen uint64 `json:"lastSeen"`
	// SeenHashes are the SHA-256 of the records received after the cursor.
	SeenHashes map[string]string `json:"seenHashes"`
}

type daemon struct {
	config  daemonConfig
	broker  *client.Broker
	session *client.Session
	info    wire.SessionInfo
	memory  memory
	cursor  wire.Cursor
	// suppressed and twice count replayed records, recognised and not.
	suppressed, twice int
	replayed          RecordSeen
}

// RunIfDaemon never returns when this process was started as a daemon of the
// story. Call it first in main and in TestMain.
func RunIfDaemon() {
	raw := os.Getenv(roleVariable)
	if raw == "" {
		return
	}
	d := &daemon{}
	err := json.Unmarshal([]byte(raw), &d.config)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), daemonTimeout)
		err = d.run(ctx)
		cancel()
	}
	if err != nil {
		d.tell(event{Name: "failed", Text: err.Error()})
		os.Exit(1)
	}
	os.Exit(0)
}

func (d *daemon) run(ctx context.Context) error {
	var err error
	if d.broker, err = client.DialBroker(ctx, d.config.BrokerSocket); err != nil {
		return err
	}
	defer d.broker.Close()
	switch d.config.Role {
	case roleFirst:
		return d.first(ctx)
	case roleRival:
		return d.rival(ctx)
	case roleSecond:
		return d.second(ctx)
	}
	return fmt.Errorf("there is no role %q", d.config.Role)
}

func (d *daemon) tell(e event) {
	b, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(append(b, '\n'))
}

// Files of the state folder.
func (d *daemon) memoryFile() string { return filepath.Join(d.config.StateDir, "memory.json") }
func (d *daemon) cursorFile() string { return filepath.Join(d.config.StateDir, "cursor") }

func (d *daemon) remember() error {
	b, err := json.Marshal(d.memory)
	if err != nil {
		return err
	}
	return os.WriteFile(d.memoryFile(), b, 0o600)
}

func (d *daemon) recall() error {
	b, err := os.ReadFile(d.memoryFile())
	if err != nil {
		return err
	}
	return json.Unmarshal(b, &d.memory)
}

// connect opens the session's socket, or the one that replaces it.
func (d *daemon) connect(ctx context.Context) (*client.Session, error) {
	path := d.config.SessionSocket
	if path == "" {
		path = d.broker.SessionSocket(d.info)
	}
	return client.DialSession(ctx, path)
}

// receive takes the next record and writes down that it was seen, unless it
// was seen before.
func (d *daemon) receive(ctx context.Context) (client.Record, error) {
	r, err := d.session.Next(ctx)
	if err != nil {
		return r, err
	}
	seen := RecordSeen{Sequence: r.Sequence, SHA256: hash(r.Data)}
	if known, ok := d.memory.SeenHashes[strconv.FormatUint(r.Sequence, 10)]; ok && known == seen.SHA256 {
		d.suppressed++
		d.replayed = seen
		return r, nil
	}
	for _, known := range d.memory.SeenHashes {
		if known == seen.SHA256 {
			d.twice++
		}
	}
	if d.memory.SeenHashes == nil {
		d.memory.SeenHashes = make(map[string]string)
	}
	d.memory.SeenHashes[strconv.FormatUint(r.Sequence, 10)] = seen.SHA256
	d.memory.LastSeen = max(d.memory.LastSeen, r.Sequence)
	return r, d.remember()
}

// message is the part of Pi's records that the story looks at.
type message struct {
	Type    string          `json:"type"`
	ID      string          `json:"id"`
	Method  string          `json:"method"`
	Message string          `json:"message"`
	Success bool            `json:"success"`
	Error   string          `json:"error"`
	Data    json.RawMessage `json:"data"`
}

// await receives until a record of Pi fits.
func (d *daemon) await(ctx context.Context, what string, fits func(message) bool) (message, RecordSeen, error) {
	for {
		r, err := d.receive(ctx)
		if err != nil {
			return message{}, RecordSeen{}, fmt.Errorf("waiting for %s: %w", what, err)
		}
		if r.Stream != wire.StreamStdout {
			continue
		}
		var m message
		if err := json.Unmarshal(r.Data, &m); err != nil {
			return message{}, RecordSeen{}, fmt.Errorf("waiting for %s: %q: %w", what, r.Data, err)
		}
		if fits(m) {
			return m, RecordSeen{Sequence: r.Sequence, SHA256: hash(r.Data)}, nil
		}
	}
}

// ask sends a command and waits for its answer.
func (d *daemon) ask(ctx context.Context, id, command string) (message, RecordSeen, error) {
	if _, err := d.session.Input(ctx, id, []byte(command+"\n")); err != nil {
		return message{}, RecordSeen{}, fmt.Errorf("input %s: %w", id, err)
	}
	return d.await(ctx, "the answer to "+id, response(id))
}

func response(id string) func(message) bool {
	return func(m message) bool { return m.Type == "response" && m.ID == id }
}

// ackAll acknowledges what was seen: first durably on our side, then there.
func (d *daemon) ackAll(ctx context.Context) error {
	d.cursor.Sequence = d.memory.LastSeen
	if err := client.SaveCursor(d.cursorFile(), d.cursor); err != nil {
		return err
	}
	return d.session.Ack(ctx, d.cursor.Sequence)
}

func (d *daemon) piSession(ctx context.Context, inputID string) (string, RecordSeen, error) {
	m, seen, err := d.ask(ctx, inputID, `{"type":"get_state","id":"`+inputID+`"}`)
	if err != nil {
		return "", seen, err
	}
	var state struct {
		SessionID string `json:"sessionId"`
	}
	if err := json.Unmarshal(m.Data, &state); err != nil {
		return "", seen, fmt.Errorf("get_state: %w", err)
	}
	if state.SessionID == "" {
		return "", seen, errors.New("get_state names no session")
	}
	return state.SessionID, seen, nil
}

func bashCommand(id, command string) string {
	b, err := json.Marshal(map[string]string{"type": "bash", "id": id, "command": command})
	if err != nil {
		panic(err)
	}
	return string(b)
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// awaitKill waits for the SIGKILL that the story promises.
func awaitKill(ctx context.Context) error {
	<-ctx.Done()
	return errors.New("nobody killed this daemon")
}

// readEvents parses a daemon's lines until it ends.
func readEvents(r *bufio.Reader, out chan<- event) {
	defer close(out)
	for {
		line, err := r.ReadString('\n')
		if strings.TrimSpace(line) != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				e = event{Name: "failed", Text: "not an event: " + line}
			}
			out <- e
		}
		if err != nil {
			return
		}
	}
}
