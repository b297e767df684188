package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// relay joins a session with standard input and output, over as many
// connections as it takes: the bridge ends the connection of a client that
// reads nothing for long, and a bridge may be replaced.
type relay struct {
	app        *app
	info       wire.SessionInfo
	socket     string
	attach     client.AttachOptions
	cursorFile string
	grace      time.Duration
	// terminate makes an interrupt end the agent; without it the relay
	// detaches.
	terminate   bool
	detachOnEOF bool
	interrupts  *interrupts
	input       *input

	session *client.Session
	cursor  wire.Cursor // written up to here
	// known is the exit that the last attachment told.
	known  *wire.Exit
	output output
	// stop is closed to do what an interrupt does.
	stop     chan struct{}
	stopOnce sync.Once
	sayStop  sync.Once
}

// Reasons of a relay to end a connection by itself.
var (
	errDetach = errors.New("detach")
	errStuck  = &wire.Error{
		Code:    wire.CodeTimeout,
		Message: "the agent did not end although it was killed",
		Advice:  "ask the broker for the session (paseo-sandbox inspect)",
	}
)

// Bounds of a relay's waits.
const (
	reconnectTimeout = 30 * time.Second
	reconnectPause   = 200 * time.Millisecond
	releaseTimeout   = 5 * time.Second
	// killTimeout is what the end of a killed agent may take.
	killTimeout = 15 * time.Second
)

// connect makes the first connection and shows the requests that wait for an
// answer and that no record will show again.
func (r *relay) connect(ctx context.Context) error {
	a, err := r.join(ctx, r.attach)
	if err != nil {
		return err
	}
	r.cursor = wire.Cursor{Epoch: a.Epoch, Sequence: first(r.attach, a) - 1}
	var behind []client.Record
	for _, p := range r.session.PendingRecords() {
		if p.Sequence <= r.cursor.Sequence {
			behind = append(behind, p)
		}
	}
	return r.output.write(behind)
}

// first is the sequence that the records of an attachment start with.
func first(o client.AttachOptions, a *wire.Attached) uint64 {
	switch o.From {
	case wire.FromCursor:
		return o.Cursor.Sequence + 1
	case wire.FromOldest:
		return max(1, a.LostBefore)
	}
	return a.NextSequence
}

func (r *relay) join(ctx context.Context, o client.AttachOptions) (*wire.Attached, error) {
	s, err := client.DialSession(ctx, r.socket)
	if err != nil {
		return nil, err
	}
	a, err := s.Attach(ctx, o)
	if err != nil {
		s.Close()
		return nil, err
	}
	r.session, r.known = s, a.Exit
	return a, nil
}

// run relays until the agent ends, when exit is set, or the relay detaches.
func (r *relay) run() (exit *wire.Exit, err error) {
	for {
		exit, err = r.serve()
		// A relay that was stopped, by a shell's job control for instance, goes
		// on, unless somebody else has become the writer.
		code := wire.CodeOf(err)
		if exit != nil || code != client.CodeConnectionLost && code != client.CodeLeaseExpired {
			return exit, err
		}
		if err := r.reconnect(err); err != nil {
			return nil, err
		}
	}
}

// reconnect goes on where the output ends. It takes nobody's seat: the old
// connection may still count as the writer for a moment, so it waits.
func (r *relay) reconnect(cause error) error {
	done := r.app.progress("the connection was lost; connecting again …")
	defer done()
	ctx, cancel := context.WithTimeout(r.interrupts.ctx, reconnectTimeout)
	defer cancel()
	o := r.attach
	o.From, o.Cursor, o.Takeover = wire.FromCursor, &r.cursor, false
	for {
		_, err := r.join(ctx, o)
		switch wire.CodeOf(err) {
		case "":
			return nil
		case client.CodeConnectionLost, client.CodeSessionUnreachable, wire.CodeWriterAlreadyAttached:
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (then: %w)", cause, err)
		case <-time.After(reconnectPause):
		}
	}
}

// serve relays over one connection.
func (r *relay) serve() (exit *wire.Exit, err error) {
	ctx, cancel := context.WithCancelCause(r.interrupts.ctx)
	acks := &acker{relay: r, wake: make(chan struct{}, 1)}
	var helpers sync.WaitGroup
	helpers.Go(func() { r.watchForStop(ctx, cancel) })
	helpers.Go(func() { acks.run(ctx, cancel) })
	if r.attach.Mode == wire.ModeWriter {
		helpers.Go(func() { r.giveInput(ctx, cancel) })
	}
	exit, err = r.copyRecords(ctx, acks)
	if err != nil && context.Cause(ctx) != nil {
		err = context.Cause(ctx)
	}
	cancel(nil)
	helpers.Wait()
	if err == nil || errors.Is(err, errDetach) {
		err = r.finish()
	}
	r.session.Close()
	return exit, err
}

// finish acknowledges what was written, and gives the writer's seat back.
func (r *relay) finish() error {
	ctx, cancel := context.WithTimeout(r.interrupts.ctx, releaseTimeout)
	defer cancel()
	if err := r.commit(ctx, r.cursor); err != nil {
		return err
	}
	if r.attach.Mode != wire.ModeWriter {
		return nil
	}
	return r.session.Release(ctx)
}

// copyRecords writes records until the exit, which may be behind the place
// where they begin.
func (r *relay) copyRecords(ctx context.Context, acks *acker) (*wire.Exit, error) {
	for {
		records, err := r.session.NextBatch(ctx)
		if errors.Is(err, io.EOF) && r.known != nil {
			return r.known, nil
		}
		if err != nil {
			return nil, err
		}
		last := records[len(records)-1]
		if err := r.output.write(records); err != nil {
			r.stopOnce.Do(func() { close(r.stop) })
		}
		if r.output.err == nil {
			r.cursor.Sequence = last.Sequence
			acks.note(r.cursor)
		}
		if last.Stream == wire.StreamExit {
			exit, err := wire.DecodeExit(last.Data)
			return &exit, err
		}
	}
}

// watchForStop does what an interrupt asks for.
func (r *relay) watchForStop(ctx context.Context, cancel context.CancelCauseFunc) {
	select {
	case <-r.interrupts.first:
	case <-r.stop:
	case <-ctx.Done():
		return
	}
	if !r.terminate {
		cancel(errDetach)
		return
	}
	r.sayStop.Do(func() {
		r.app.say(map[string]any{"stopping": r.info.Session}, "stopping the agent; interrupt again to leave at once")
	})
	if err := r.session.Terminate(ctx, r.grace); err != nil {
		if wire.CodeOf(err) != client.CodeConnectionLost {
			cancel(err)
		}
		return
	}
	stuck := time.NewTimer(2*r.grace + killTimeout)
	defer stuck.Stop()
	select {
	case <-stuck.C:
		cancel(errStuck)
	case <-ctx.Done():
	}
}

// commit makes a place durable here, then acknowledges it.
func (r *relay) commit(ctx context.Context, cursor wire.Cursor) error {
	if cursor.Sequence == 0 {
		return nil
	}
	if r.cursorFile != "" {
		if err := client.SaveCursor(r.cursorFile, cursor); err != nil {
			return err
		}
	}
	if r.attach.Mode != wire.ModeWriter {
		return nil
	}
	return r.session.Ack(ctx, cursor.Sequence)
}

// acker commits the latest place, one at a time, beside the copying.
type acker struct {
	relay *relay
	wake  chan struct{}

	mu     sync.Mutex
	cursor wire.Cursor
}

func (k *acker) note(cursor wire.Cursor) {
	k.mu.Lock()
	k.cursor = cursor
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *acker) run(ctx context.Context, cancel context.CancelCauseFunc) {
	for {
		select {
		case <-k.wake:
		case <-ctx.Done():
			return
		}
		k.mu.Lock()
		cursor := k.cursor
		k.mu.Unlock()
		err := k.relay.commit(ctx, cursor)
		if err == nil || ctx.Err() != nil {
			continue
		}
		// The reader of records learns the same from the connection, with
		// those that came before.
		if code := wire.CodeOf(err); code != client.CodeConnectionLost && code != wire.CodeStaleWriter {
			cancel(err)
		}
		return
	}
}

// output writes records to standard output and standard error as they are.
type output struct {
	stdout, stderr io.Writer
	// err is the first failure; nothing is written after it.
	err error
	buf []byte
}

// flushAt bounds what is gathered for one write.
const flushAt = 64 << 10

func (o *output) write(records []client.Record) error {
	var to io.Writer
	for _, r := range records {
		w := o.stdout
		switch r.Stream {
		case wire.StreamStderr:
			w = o.stderr
		case wire.StreamExit:
			continue
		}
		if w != to || len(o.buf)+len(r.Data) > flushAt {
			o.flush(to)
			to = w
		}
		if len(r.Data) > flushAt {
			o.put(to, r.Data)
			continue
		}
		o.buf = append(o.buf, r.Data...)
	}
	o.flush(to)
	return o.err
}

func (o *output) flush(w io.Writer) {
	o.put(w, o.buf)
	o.buf = o.buf[:0]
}

func (o *output) put(w io.Writer, b []byte) {
	if len(b) == 0 || o.err != nil {
		return
	}
	if _, err := w.Write(b); err != nil {
		o.err = &wire.Error{
			Code:    codeOutputClosed,
			Message: "what the agent prints can't be written",
			Advice:  "keep reading standard output, or attach again: what was not written is still there",
			Err:     err,
		}
	}
}
