package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/client/pi"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Role is a daemon's part.
type Role string

// Roles, in the order in which they come.
const (
	// RoleFirst makes the session, opens a dialog and begins a turn.
	RoleFirst Role = "first"
	// RoleSecond reads the end of the turn, answers the dialog, opens another
	// and begins another turn.
	RoleSecond Role = "second"
	// RoleThird cancels what the second left, and ends Pi.
	RoleThird Role = "third"
)

// Files that daemons leave.
const (
	// SessionFile has the session, once it runs.
	SessionFile = "session"
	// AttachedFile is there once the second daemon is attached.
	AttachedFile = "attached"
	// CancelledFile has what the third daemon cancelled.
	CancelledFile = "cancelled"
)

// Commands of the two turns. Each leaves a line in a file of the workspace as
// it begins; the first goes on until it finds a file.
const (
	First  = `echo >> /workspace/runs; i=0; while [ ! -e /workspace/go ] && [ $i -lt 1900 ]; do i=$((i+1)); echo "line $i"; echo $i >> /workspace/counted; sleep 0.1; done; echo end`
	Second = `i=0; while [ $i -lt 1900 ]; do i=$((i+1)); echo $i >> /workspace/endless; sleep 0.1; done`
)

func (d *daemon) run(ctx context.Context) error {
	err := mend(d.config.StateDir)
	if err != nil {
		return err
	}
	if d.broker, err = client.DialBroker(ctx, d.config.BrokerSocket); err != nil {
		return err
	}
	defer d.broker.Close()
	if d.config.Role == RoleFirst {
		d.info, err = d.broker.Create(ctx, Create())
		err = errors.Join(err, d.note(SessionFile, d.info))
	} else {
		var b []byte
		if b, err = os.ReadFile(d.file(SessionFile)); err == nil {
			err = json.Unmarshal(b, &d.info)
		}
	}
	if err != nil {
		return err
	}
	if err := d.attach(ctx); err != nil {
		return err
	}
	defer func() { d.session.Close() }()
	switch d.config.Role {
	case RoleFirst:
		return d.begin(ctx, First)
	case RoleSecond:
		return d.second(ctx)
	case RoleThird:
		return d.third(ctx)
	}
	return fmt.Errorf("there is no role %q", d.config.Role)
}

// begin opens a dialog, begins a turn and reads until it is killed.
func (d *daemon) begin(ctx context.Context, command string) error {
	name := string(d.config.Role)
	if err := d.give(ctx, name+"-ask", map[string]any{"type": "prompt", "message": "/ask"}); err != nil {
		return err
	}
	m, err := d.follow(ctx, func(m message) bool { return m.Method == "confirm" })
	if err != nil {
		return err
	}
	if err := d.note("dialog", m.ID); err != nil {
		return err
	}
	if err := d.give(ctx, name+"-turn", map[string]any{"type": "prompt", "message": "run " + command}); err != nil {
		return err
	}
	_, err = d.follow(ctx, func(message) bool { return false })
	return err
}

func (d *daemon) second(ctx context.Context) error {
	if err := d.note(AttachedFile, true); err != nil {
		return err
	}
	if _, err := d.follow(ctx, func(m message) bool { return m.Type == "agent_settled" }); err != nil {
		return err
	}
	var dialog string
	b, err := os.ReadFile(d.file("dialog"))
	if err == nil {
		err = json.Unmarshal(b, &dialog)
	}
	if err != nil {
		return err
	}
	if err := d.give(ctx, "second-answer", map[string]any{"type": "extension_ui_response", "id": dialog, "confirmed": true}); err != nil {
		return err
	}
	if _, err := d.follow(ctx, func(m message) bool { return strings.HasPrefix(m.Message, "ask answered") }); err != nil {
		return err
	}
	return d.begin(ctx, Second)
}

func (d *daemon) third(ctx context.Context) error {
	o := pi.CancelOptions{ID: "third-cancel", Next: d.follower.Next, Record: func(r client.Record) error { return d.keep(ctx, r) }}
	cancelled, err := pi.CancelTurn(ctx, d.session, o)
	if err != nil {
		return err
	}
	if err := d.note(CancelledFile, cancelled); err != nil {
		return err
	}
	if err := d.session.CloseInput(ctx); err != nil {
		return err
	}
	if _, err := d.follow(ctx, func(message) bool { return false }); !errors.Is(err, io.EOF) {
		return fmt.Errorf("no exit record: %w", err)
	}
	return d.broker.Delete(ctx, d.info.Session)
}

// Cancelled is what the third daemon wrote down.
func Cancelled(dir string) (c pi.Cancelled, err error) {
	b, err := os.ReadFile(dir + "/" + CancelledFile)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	return c, err
}

// Session is what the first daemon wrote down.
func Session(dir string) (info wire.SessionInfo, err error) {
	b, err := os.ReadFile(dir + "/" + SessionFile)
	if err == nil {
		err = json.Unmarshal(b, &info)
	}
	return info, err
}
