package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// roleVariable makes a process that is started again from our own executable a
// daemon.
const roleVariable = "PASEO_SANDBOX_TURN_ROLE"

// daemonTimeout bounds the life of a daemon that nobody kills.
const daemonTimeout = 5 * time.Minute

// Config is what a daemon is told, through its environment.
type Config struct {
	Role         Role   `json:"role"`
	BrokerSocket string `json:"brokerSocket"`
	// StateDir is what daemons leave to those that come after them: records,
	// the cursor, the session's id.
	StateDir string `json:"stateDir"`
}

// Environment is the variable that makes a process a daemon.
func (c Config) Environment() (string, error) {
	b, err := json.Marshal(c)
	return roleVariable + "=" + string(b), err
}

// RunIfDaemon never returns when this process was started as a daemon. Call it
// first in TestMain.
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
		fmt.Fprintf(os.Stderr, "daemon %s: %v\n", d.config.Role, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// daemon reads on one connection after the other. What it has read is on disk
// before its cursor is, and that before the ack.
type daemon struct {
	config   Config
	broker   *client.Broker
	info     wire.SessionInfo
	session  *client.Session
	follower *client.Follower
}

func (d *daemon) file(name string) string { return filepath.Join(d.config.StateDir, name) }

// note leaves a file for the test and for the next daemon.
func (d *daemon) note(name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(d.file(name), b, 0o600)
}

// retryPause is between two tries to reach a bridge that is being replaced.
const retryPause = 20 * time.Millisecond

// attach goes on at the durable cursor, as long as it takes.
func (d *daemon) attach(ctx context.Context) error {
	for {
		err := d.tryAttach(ctx)
		if !isLost(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retryPause):
		}
	}
}

func isLost(err error) bool {
	code := wire.CodeOf(err)
	return code == client.CodeConnectionLost || code == client.CodeSessionUnreachable
}

func (d *daemon) tryAttach(ctx context.Context) error {
	stored, err := Records(d.config.StateDir)
	if err != nil {
		return err
	}
	o := client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromOldest, Takeover: true, Client: string(d.config.Role)}
	cursor, err := client.LoadCursor(d.file("cursor"))
	switch {
	case err == nil:
		o.From, o.Cursor = wire.FromCursor, &cursor
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	s, err := client.DialSession(ctx, d.broker.SessionSocket(d.info))
	if err != nil {
		return err
	}
	attached, err := s.Attach(ctx, o)
	if err != nil {
		s.Close()
		return err
	}
	var seen wire.Cursor
	if n := len(stored); n > 0 {
		seen = wire.Cursor{Epoch: attached.Epoch, Sequence: stored[n-1].Sequence}
	}
	d.session = s
	d.follower, err = s.Follow(seen, d.file("cursor"))
	return err
}

// message is the part of Pi's records that daemons look at.
type message struct {
	Type, ID, Method, Message string
}

// follow reads until a record fits.
func (d *daemon) follow(ctx context.Context, fits func(message) bool) (message, error) {
	for {
		r, err := d.follower.Next(ctx)
		if err == nil {
			err = d.keep(ctx, r)
		}
		if isLost(err) {
			d.session.Close()
			err = d.attach(ctx)
		}
		if err != nil {
			return message{}, err
		}
		var m message
		if r.Stream == wire.StreamStdout && json.Unmarshal(r.Data, &m) == nil && fits(m) {
			return m, nil
		}
	}
}

// keep makes a record durable here, and lets the bridge free it.
func (d *daemon) keep(ctx context.Context, r client.Record) error {
	if err := d.store(r); err != nil {
		return err
	}
	return d.follower.Commit(ctx)
}

// give sends an input until it is accepted; its id is that of its command.
func (d *daemon) give(ctx context.Context, id string, command map[string]any) error {
	if _, ok := command["id"]; !ok {
		command["id"] = id
	}
	b, err := json.Marshal(command)
	if err != nil {
		return err
	}
	for {
		_, err := d.session.Input(ctx, id, append(b, '\n'))
		if !isLost(err) {
			return err
		}
		d.session.Close()
		if err := d.attach(ctx); err != nil {
			return err
		}
	}
}
