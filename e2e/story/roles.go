package story

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// askExtension gives Pi a command that opens a dialog.
//
//go:embed ask.ts
var askExtension []byte

// Input ids of the first daemon. A daemon must choose ids that no other run of
// it chooses, so each has its run as a prefix.
const (
	firstState = "first-state"
	firstAsk   = "first-ask"
	firstTicks = "first-ticks"
	firstOnce  = "first-once"
	firstLast  = "first-last"
)

// Commands that leave a trace in the workspace.
const (
	ticksCommand = `i=0; while [ $i -lt 6000 ]; do i=$((i+1)); echo $i >> /workspace/ticks; sleep 0.05; done`
	onceCommand  = `echo once >> /workspace/once`
	staleCommand = `echo stale >> /workspace/stale`
)

// Commands that give an effect that must not come a second to come.
const (
	awaitTwice = `for i in 1 2 3 4 5; do mapfile -t lines < /workspace/once; [ ${#lines[@]} -ge 2 ] && break; sleep 0.2; done`
	awaitStale = `for i in 1 2 3 4 5; do [ -e /workspace/stale ] && break; sleep 0.2; done`
)

// first drives Pi until it has work in flight, an open dialog and a record
// that it received and did not acknowledge; then it waits to be killed.
func (d *daemon) first(ctx context.Context) error {
	if err := d.create(ctx); err != nil {
		return err
	}
	attached, err := d.attach(ctx, client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromOldest, Client: "daemon-one"})
	if err != nil {
		return err
	}
	defer d.session.Close()
	d.memory.Session, d.memory.Lease = d.info.Session, attached.Lease
	pi, _, err := d.piSession(ctx, firstState)
	if err != nil {
		return err
	}
	d.tell(event{Name: "pi", Text: pi})
	if err := d.openDialog(ctx); err != nil {
		return err
	}
	if err := d.startWork(ctx); err != nil {
		return err
	}
	if err := d.ackAll(ctx); err != nil {
		return err
	}
	d.tell(event{Name: "acked", Cursor: d.cursor})
	_, last, err := d.piSession(ctx, firstLast)
	if err != nil {
		return err
	}
	d.tell(event{Name: "unacked", Record: last})
	return awaitKill(ctx)
}

func (d *daemon) create(ctx context.Context) error {
	info, err := d.broker.Create(ctx, client.CreateOptions{
		Workspace:   "project",
		Attachments: []wire.Attachment{{Kind: wire.AttachmentExtension, Name: "ask.ts", Data: askExtension}},
	})
	if err != nil {
		return err
	}
	d.info = info
	d.tell(event{Name: "created", Session: &info})
	return nil
}

func (d *daemon) attach(ctx context.Context, o client.AttachOptions) (*wire.Attached, error) {
	s, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	attached, err := s.Attach(ctx, o)
	if err != nil {
		s.Close()
		return nil, err
	}
	d.session = s
	d.cursor.Epoch = attached.Epoch
	d.tell(event{Name: "attached", Generation: attached.Generation})
	return attached, nil
}

// openDialog makes the extension ask, and acknowledges the request: an ack
// must not lose it.
func (d *daemon) openDialog(ctx context.Context) error {
	if _, err := d.session.Input(ctx, firstAsk, []byte(`{"type":"prompt","id":"first-ask","message":"/ask"}`+"\n")); err != nil {
		return err
	}
	m, _, err := d.await(ctx, "the extension's dialog", func(m message) bool {
		return m.Type == "extension_ui_request" && m.Method == "confirm"
	})
	if err != nil {
		return err
	}
	d.memory.DialogID = m.ID
	d.tell(event{Name: "dialog", Text: m.ID})
	return d.remember()
}

// startWork starts the command that runs on, and gives the input that is sent
// again later: its id and bytes are written down before it is sent.
func (d *daemon) startWork(ctx context.Context) error {
	if _, err := d.session.Input(ctx, firstTicks, []byte(bashCommand(firstTicks, ticksCommand)+"\n")); err != nil {
		return err
	}
	d.memory.OnceInputID, d.memory.OnceInput = firstOnce, bashCommand(firstOnce, onceCommand)+"\n"
	if err := d.remember(); err != nil {
		return err
	}
	if _, err := d.session.Input(ctx, firstOnce, []byte(d.memory.OnceInput)); err != nil {
		return err
	}
	_, _, err := d.await(ctx, "the answer to "+firstOnce, response(firstOnce))
	return err
}

// rival tries to write while the first daemon lives.
func (d *daemon) rival(ctx context.Context) error {
	if err := d.find(ctx); err != nil {
		return err
	}
	s, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	_, err = s.Attach(ctx, client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromLive, Client: "rival"})
	d.tell(event{Name: "rival", Text: string(wire.CodeOf(err))})
	return nil
}

// find looks the remembered session up at the broker.
func (d *daemon) find(ctx context.Context) error {
	if err := d.recall(); err != nil {
		return err
	}
	info, err := d.broker.Inspect(ctx, d.memory.Session)
	if err != nil {
		return err
	}
	d.info = info
	d.tell(event{Name: "found", Session: &info})
	return nil
}

// second goes on where the first one was killed.
func (d *daemon) second(ctx context.Context) error {
	if err := d.find(ctx); err != nil {
		return err
	}
	if err := d.resume(ctx); err != nil {
		return err
	}
	defer d.session.Close()
	steps := []func(context.Context) error{d.catchUp, d.resend, d.tryStaleLease, d.answerDialog, d.cancelWork, d.checkSession, d.finish}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *daemon) resume(ctx context.Context) error {
	cursor, err := client.LoadCursor(d.cursorFile())
	if err != nil {
		return err
	}
	attached, err := d.attach(ctx, client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromCursor, Cursor: &cursor, Client: "daemon-two"})
	if err != nil {
		return err
	}
	d.cursor = cursor
	d.tell(event{Name: "resumed", Cursor: cursor})
	pending := false
	for _, p := range attached.Pending {
		pending = pending || p.RequestID == d.memory.DialogID
	}
	d.tell(event{Name: "pending", Text: d.memory.DialogID, Yes: pending})
	return nil
}

// catchUp reads until the marker that it sends comes back: everything that was
// replayed stands before it.
func (d *daemon) catchUp(ctx context.Context) error {
	if _, _, err := d.piSession(ctx, "second-marker"); err != nil {
		return err
	}
	d.tell(event{Name: "replayed", Record: d.replayed, Count: d.suppressed, Yes: d.twice > 0})
	return d.ackAll(ctx)
}

func (d *daemon) resend(ctx context.Context) error {
	duplicate, err := d.session.Input(ctx, d.memory.OnceInputID, []byte(d.memory.OnceInput))
	if err != nil {
		return err
	}
	if _, _, err := d.ask(ctx, "second-after-once", bashCommand("second-after-once", awaitTwice)); err != nil {
		return err
	}
	d.tell(event{Name: "resent", Yes: duplicate})
	return nil
}

// tryStaleLease sends an input under the dead daemon's lease, on a connection
// of its own and below the client library, which would not do it.
func (d *daemon) tryStaleLease(ctx context.Context) error {
	path := d.config.SessionSocket
	if path == "" {
		path = d.broker.SessionSocket(d.info)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		conn.SetDeadline(deadline)
	}
	code, err := staleInput(conn, d.memory.Lease)
	if err != nil {
		return err
	}
	d.tell(event{Name: "stale", Text: code})
	_, _, err = d.ask(ctx, "second-after-stale", bashCommand("second-after-stale", awaitStale))
	return err
}

func staleInput(conn io.ReadWriter, lease string) (string, error) {
	answer, err := exchange(conn, wire.Hello{Protocol: wire.ProtocolBridge, Versions: []uint64{wire.Version}, MaxFrame: wire.MaxBridgeFrame})
	if err != nil {
		return "", err
	}
	if _, ok := answer.(wire.Hello); !ok {
		return "", fmt.Errorf("no hello but %T", answer)
	}
	answer, err = exchange(conn, wire.Attach{ID: 1, Mode: wire.ModeObserver, From: wire.FromLive, Client: "stale"})
	if err != nil {
		return "", err
	}
	if _, ok := answer.(wire.Attached); !ok {
		return "", fmt.Errorf("not attached but %T", answer)
	}
	answer, err = exchange(conn, wire.Input{ID: 2, Lease: lease, InputID: "stale", Data: []byte(bashCommand("stale", staleCommand) + "\n")})
	if err != nil {
		return "", err
	}
	switch m := answer.(type) {
	case wire.ErrorMessage:
		return string(m.Code), nil
	default:
		return m.Kind(), nil
	}
}

func exchange(conn io.ReadWriter, m wire.Message) (wire.Message, error) {
	b, err := wire.Encode(m)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(wire.AppendFrame(nil, b)); err != nil {
		return nil, err
	}
	for {
		if b, err = wire.ReadFrame(conn, wire.MaxBridgeFrame, nil); err != nil {
			return nil, err
		}
		answer, err := wire.Decode(wire.BridgeReplies, b)
		if _, ok := answer.(wire.Records); ok {
			continue // live records come between the answers
		}
		return answer, err
	}
}

func (d *daemon) answerDialog(ctx context.Context) error {
	answer, err := json.Marshal(map[string]any{"type": "extension_ui_response", "id": d.memory.DialogID, "confirmed": true})
	if err != nil {
		return err
	}
	if _, err := d.session.Input(ctx, "second-answer", append(answer, '\n')); err != nil {
		return err
	}
	m, _, err := d.await(ctx, "the extension's words", func(m message) bool {
		return m.Type == "extension_ui_request" && m.Method == "notify" && strings.HasPrefix(m.Message, "ask answered")
	})
	if err != nil {
		return err
	}
	d.tell(event{Name: "answered", Text: m.Message})
	return nil
}

func (d *daemon) cancelWork(ctx context.Context) error {
	if _, err := d.session.Input(ctx, "second-abort", []byte(`{"type":"abort_bash","id":"second-abort"}`+"\n")); err != nil {
		return err
	}
	m, _, err := d.await(ctx, "the end of the cancelled command", response(firstTicks))
	if err != nil {
		return err
	}
	var result struct {
		Cancelled bool `json:"cancelled"`
	}
	if err := json.Unmarshal(m.Data, &result); err != nil {
		return fmt.Errorf("the cancelled command's answer: %w", err)
	}
	text := "not cancelled"
	if result.Cancelled {
		text = "cancelled"
	}
	d.tell(event{Name: "cancelled", Text: text})
	return nil
}

func (d *daemon) checkSession(ctx context.Context) error {
	pi, _, err := d.piSession(ctx, "second-state")
	if err != nil {
		return err
	}
	d.tell(event{Name: "pi", Text: pi})
	return nil
}

// finish closes Pi's input, waits for the exit record, acknowledges it and
// deletes the session.
func (d *daemon) finish(ctx context.Context) error {
	if d.config.KeepSession {
		return nil
	}
	if err := d.session.CloseInput(ctx); err != nil {
		return err
	}
	for {
		r, err := d.receive(ctx)
		if errors.Is(err, io.EOF) {
			return errors.New("the records ended without an exit record")
		}
		if err != nil {
			return err
		}
		if r.Stream != wire.StreamExit {
			continue
		}
		exit, err := wire.DecodeExit(r.Data)
		if err != nil {
			return err
		}
		if err := d.ackAll(ctx); err != nil {
			return err
		}
		d.tell(event{Name: "exit", Exit: &exit, Cursor: d.cursor})
		break
	}
	if err := d.broker.Delete(ctx, d.memory.Session); err != nil {
		return err
	}
	d.tell(event{Name: "deleted"})
	return nil
}
