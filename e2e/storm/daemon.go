package storm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/flow"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// daemonVariable makes a process that is started from our own executable a
// daemon.
const daemonVariable = "PASEO_SANDBOX_STORM_DAEMON"

const (
	// An input is about inputBytes, and the next one follows after inputPause.
	inputBytes = 8 << 10
	inputPause = 10 * time.Millisecond
	// retryPause is between two tries to connect, or to close the input.
	retryPause = 5 * time.Millisecond
	// ackEvery is how many records are stored and acknowledged at once.
	ackEvery = 200
)

// daemonConfig is what a daemon is told, through its environment.
type daemonConfig struct {
	Socket string  `json:"socket"`
	Dir    string  `json:"dir"`
	Names  streams `json:"names"`
}

// streams are the names of a session's streams.
type streams struct {
	Stdout uint64 `json:"stdout"`
	Stderr uint64 `json:"stderr"`
	Stdin  uint64 `json:"stdin"`
}

// daemon is a writer that goes on at its durable cursor, over as many
// connections and processes as it takes.
type daemon struct {
	daemonConfig

	mu     sync.Mutex
	ledger ledger
	stored uint64 // up to which the ledger on disk goes
}

// RunIfDaemon never returns in a process that was started as a daemon. Call it
// first in TestMain. The daemon ends with status 0 when the session has ended
// and nothing was wrong; what was is its standard error.
func RunIfDaemon() {
	raw := os.Getenv(daemonVariable)
	if raw == "" {
		return
	}
	d := &daemon{}
	err := json.Unmarshal([]byte(raw), &d.daemonConfig)
	if err == nil {
		d.ledger, err = loadLedger(d.Dir)
	}
	if err == nil {
		err = d.run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (d *daemon) run(ctx context.Context) error {
	for d.ledger.Exit == nil {
		if err := d.connection(ctx); err != nil && !passes(err) {
			return err
		}
		time.Sleep(retryPause)
	}
	return nil
}

// passes reports whether an error only means that the connection is to be made
// again: a bridge died, or was stopped for longer than the lease.
func passes(err error) bool {
	switch wire.CodeOf(err) {
	case client.CodeConnectionLost, client.CodeSessionUnreachable, client.CodeConnectionClosed, client.CodeLeaseExpired,
		client.CodeCancelled, wire.CodeTimeout, wire.CodeStaleWriter:
		return true
	}
	return errors.Is(err, io.EOF)
}

func (d *daemon) connection(ctx context.Context) error {
	s, err := client.DialSession(ctx, d.Socket)
	if err != nil {
		return err
	}
	defer s.Close()
	// The one before may be dead without the bridge's having seen it.
	o := client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromOldest, Takeover: true}
	if d.ledger.Cursor.Epoch != "" {
		o.From, o.Cursor = wire.FromCursor, &d.ledger.Cursor
	}
	attached, err := s.Attach(ctx, o)
	if err != nil {
		return err
	}
	d.ledger.Cursor.Epoch = attached.Epoch
	sending, stop := context.WithCancel(ctx)
	sent := make(chan error, 1)
	go func() {
		err := d.send(sending, s)
		if err != nil && !passes(err) {
			s.Close() // the receiver ends too
		}
		sent <- err
	}()
	err = d.receive(ctx, s)
	stop()
	s.Close()
	if err := <-sent; err != nil && !passes(err) {
		return fmt.Errorf("input: %w", err)
	}
	return err
}

// send gives inputs, each made anew from its place in the stream, until it is
// told to stop; then it closes the input.
func (d *daemon) send(ctx context.Context, s *client.Session) error {
	d.mu.Lock()
	stream, n := flow.Stream{Name: d.Names.Stdin, At: d.ledger.Stdin}, d.ledger.Inputs
	d.mu.Unlock()
	for ; !d.stopping(); n++ {
		var data []byte
		for len(data) < inputBytes {
			data = append(data, stream.Next()...)
		}
		duplicate, err := s.Input(ctx, fmt.Sprintf("input-%d", n), data)
		if err != nil {
			return ended(err)
		}
		if err := d.accepted(stream.At, n+1, duplicate); err != nil {
			return err
		}
		time.Sleep(inputPause)
	}
	for {
		err := s.CloseInput(ctx)
		if wire.CodeOf(err) != wire.CodeBrokerUnreachable {
			return err
		}
		time.Sleep(retryPause)
	}
}

// ended forgives an input that comes after the agent's end.
func ended(err error) error {
	if wire.CodeOf(err) == wire.CodeRuntimeNotWritable {
		return nil
	}
	return err
}

func (d *daemon) stopping() bool {
	_, err := os.Stat(filepath.Join(d.Dir, stopFile))
	return err == nil
}

func (d *daemon) accepted(at flow.Position, n uint64, duplicate bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ledger.Stdin, d.ledger.Inputs = at, n
	if duplicate {
		d.ledger.Duplicates++
	}
	return d.save()
}

// save writes the ledger. The caller holds the mutex.
func (d *daemon) save() error {
	d.stored = d.ledger.Cursor.Sequence
	return d.ledger.save(d.Dir)
}

// receive checks records until the exit, or the connection's end.
func (d *daemon) receive(ctx context.Context, s *client.Session) error {
	for {
		r, err := s.Next(ctx)
		if err != nil {
			return err
		}
		stored, err := d.take(r)
		if err != nil {
			return err
		}
		if r.Stream == wire.StreamExit {
			return nil
		}
		if stored {
			if err := s.Ack(ctx, r.Sequence); err != nil {
				return err
			}
		}
	}
}

// take checks one record and reports whether the ledger on disk has it.
func (d *daemon) take(r client.Record) (stored bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if want := d.ledger.Cursor.Sequence + 1; r.Sequence != want {
		return false, fmt.Errorf("record %d comes in the place of record %d", r.Sequence, want)
	}
	d.ledger.Cursor.Sequence = r.Sequence
	if err := d.check(r); err != nil {
		return false, fmt.Errorf("record %d: %w", r.Sequence, err)
	}
	if r.Stream != wire.StreamExit && r.Sequence-d.stored < ackEvery {
		return false, nil
	}
	return true, d.save()
}

func (d *daemon) check(r client.Record) error {
	stream, at := flow.Stream{Name: d.Names.Stdout, At: d.ledger.Stdout}, &d.ledger.Stdout
	switch r.Stream {
	case wire.StreamExit:
		exit, err := wire.DecodeExit(r.Data)
		d.ledger.Exit = &exit
		return err
	case wire.StreamStderr:
		stream, at = flow.Stream{Name: d.Names.Stderr, At: d.ledger.Stderr}, &d.ledger.Stderr
	case wire.StreamStdout:
		if v, ok := flow.ParseVerdict(r.Data); ok {
			d.ledger.Verdict = &v
			return nil
		}
		if d.ledger.Verdict != nil {
			return errors.New("a line follows on the agent's last one")
		}
	}
	if slices.Contains(d.ledger.Cut, r.Stream) {
		return fmt.Errorf("stream %d goes on after a line that was cut", r.Stream)
	}
	if n := len(r.Data); n > 0 && r.Data[n-1] != '\n' && bytes.HasPrefix(stream.Line(), r.Data) {
		d.ledger.Cut = append(d.ledger.Cut, r.Stream)
		return nil
	}
	err := stream.Check(r.Data)
	*at = stream.At
	if err != nil {
		err = fmt.Errorf("stream %d: %w", r.Stream, err)
	}
	return err
}
