package pi

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

const (
	// MaxCancelID bounds CancelOptions.ID, in bytes: with what is added, it has
	// to be an input id.
	MaxCancelID = 64
	// cancelTimeout bounds a cancellation whose context has no deadline.
	cancelTimeout = time.Minute
	// maxRounds bounds the orders to an agent that starts again and again.
	maxRounds = 1000
)

// CodeRefused: Pi answered a command of the cancellation with an error.
const CodeRefused wire.Code = "agent_refused"

// Session is what CancelTurn needs of a client.Session that is attached as the
// writer.
type Session interface {
	Input(ctx context.Context, inputID string, data []byte) (duplicate bool, err error)
	Inspect(ctx context.Context) (wire.Status, error)
	Next(ctx context.Context) (client.Record, error)
}

// CancelOptions say how to cancel.
type CancelOptions struct {
	// ID names this cancellation: 1 to MaxCancelID printable ASCII characters
	// without a space, that no other one of the session has. Write it down
	// before the call. After a crash call again with it, before any other
	// input: what had been given is not given twice.
	ID string
	// Record, unless it is nil, gets each record that is read meanwhile, in
	// order and before anything comes of it. Its error ends the call.
	Record func(client.Record) error
	// Next is where records come from, for a program whose records are read by
	// a goroutine of its own; nil means Session.Next.
	Next func(context.Context) (client.Record, error)
	// Prompts are the ids of commands "prompt" that Pi has not answered as far
	// as this program has read. Such a turn may be about to begin, and Pi
	// tells of it nowhere: the call waits for the answers. It does not change
	// the slice.
	Prompts []string
}

// Cancelled says what came of a cancellation: of this call, not of one that was
// made before with the same ID.
type Cancelled struct {
	// Turn says that a turn ended.
	Turn bool
	// Dialogs counts the requests that were answered as cancelled, Bash the
	// commands "bash" that Pi told to be cancelled until the end of the call.
	Dialogs, Bash int
	// Queued counts the messages that still wait for the next turn. They are
	// gone with a Pi that has the command clear_queue.
	Queued int
}

// CancelTurn ends what Pi is doing, whoever began it: it has Pi drop the queue
// of messages, cancel the running commands "bash" and abort the turn, answers
// every dialog as cancelled, those too that are opened meanwhile, and returns
// once Pi says that nothing runs. A session that does nothing is cancelled at
// once. A compaction on its own (command "compact") goes on: Pi has no order
// against it.
//
// Pi (0.84.2) needs this order. Abort does not drop queued messages: the next
// one would begin a turn, and where Pi does not know clear_queue it does, so
// each beginning is aborted too. A pending dialog keeps an abort from ending,
// but it is answered after the abort has begun: after "no" to an extension
// that asks whether to stop a tool, the tool would run.
//
// Errors: wire.CodeInvalidArgument, also for a session that does not run Pi;
// wire.CodeTimeout when ctx, or a minute, ends first, and client.CodeCancelled;
// wire.CodeSessionNotRunning when the agent ended; CodeRefused; those of Input
// and Next. After any of them it may be called again with the same ID.
func CancelTurn(ctx context.Context, s Session, o CancelOptions) (Cancelled, error) {
	if !validID(o.ID) {
		return Cancelled{}, &wire.Error{
			Code:    wire.CodeInvalidArgument,
			Message: fmt.Sprintf("the name %.80q of the cancellation is not usable", o.ID),
			Advice:  fmt.Sprintf("use 1 to %d printable ASCII characters without a space", MaxCancelID),
		}
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cancelTimeout)
		defer cancel()
	}
	c := &cancellation{session: s, options: o, call: rand.Text(), prompts: make(map[string]bool)}
	if c.options.Next == nil {
		c.options.Next = s.Next
	}
	for _, id := range o.Prompts {
		c.prompts[id] = true
	}
	if status, err := s.Inspect(ctx); err != nil || status.Framing != wire.FramingPi {
		return Cancelled{}, cmp.Or(c.explain(err), notPi())
	}
	for c.round = 1; c.round <= maxRounds; c.round++ {
		quiet, err := c.once(ctx)
		if quiet || err != nil {
			return c.result, err
		}
	}
	return c.result, &wire.Error{
		Code:    wire.CodeTimeout,
		Message: fmt.Sprintf("the agent began again %d times", maxRounds),
		Advice:  "end the session",
	}
}

func validID(id string) bool {
	for _, b := range []byte(id) {
		if b <= ' ' || b > '~' {
			return false
		}
	}
	return id != "" && len(id) <= MaxCancelID
}

// cancellation is one call of CancelTurn.
type cancellation struct {
	session Session
	options CancelOptions
	// call is in the ids of questions, which a later call asks anew.
	call  string
	round int
	// prompts are those without an answer.
	prompts map[string]bool
	// live is set once an answer to the cancellation was read: what stands
	// before it is history.
	live bool
	// dialogs and begun are of a round: it answered dialogs; a turn began, or
	// may have.
	dialogs, begun bool
	result         Cancelled
}

// id returns the name of an input, and of its command.
func (c *cancellation) id(what string) string {
	return fmt.Sprintf("%s/%d/%s", c.options.ID, c.round, what)
}

// once gives the orders of one round and reports whether Pi does nothing then.
// The round after one with dialogs shows whether the answers led to something.
func (c *cancellation) once(ctx context.Context) (quiet bool, err error) {
	c.dialogs, c.begun = false, false
	abort := c.id("abort")
	// One input, so that there is no half of it after a crash.
	orders := line("clear_queue", c.id("clear_queue")) + line("abort_bash", c.id("abort_bash")) + line("abort", abort)
	duplicate, err := c.session.Input(ctx, c.id("orders"), []byte(orders))
	if err != nil {
		return false, c.explain(err)
	}
	if err := c.cancelDialogs(ctx); err != nil {
		return false, err
	}
	// The answer to an order of a call before may have been read then.
	if !duplicate {
		if _, err := c.await(ctx, abort); err != nil || c.begun {
			return false, err
		}
	}
	id := c.id("get_state-" + c.call)
	if _, err := c.session.Input(ctx, id, []byte(line("get_state", id))); err != nil {
		return false, c.explain(err)
	}
	m, err := c.await(ctx, id)
	if err != nil || c.begun {
		return false, err
	}
	state, err := m.state()
	if err != nil || c.dialogs || state.IsStreaming {
		return false, err
	}
	if len(c.prompts) > 0 {
		_, err := c.await(ctx, "")
		return false, err
	}
	c.result.Queued = state.PendingMessageCount
	return true, nil
}

// cancelDialogs answers what the bridge says is pending.
func (c *cancellation) cancelDialogs(ctx context.Context) error {
	status, err := c.session.Inspect(ctx)
	if err != nil {
		return c.explain(err)
	}
	for _, p := range status.Pending {
		id := fmt.Sprintf("%s/dialog/%d", c.options.ID, p.Sequence)
		_, err := c.session.Input(ctx, id, []byte(refusal(p.RequestID)))
		if wire.CodeOf(err) == wire.CodeRequestAnswered {
			continue // by somebody else, a moment ago
		}
		if err != nil {
			return c.explain(err)
		}
		c.result.Dialogs++
		c.dialogs = true
	}
	return nil
}

// await reads until Pi has answered the command of this id, or until a turn may
// have begun.
func (c *cancellation) await(ctx context.Context, id string) (*message, error) {
	for !c.begun {
		r, err := c.options.Next(ctx)
		if err != nil {
			return nil, c.explain(err)
		}
		if c.options.Record != nil {
			if err := c.options.Record(r); err != nil {
				return nil, err
			}
		}
		if r.Stream == wire.StreamExit {
			return nil, ended()
		}
		m := parse(r)
		if err := c.note(ctx, m); err != nil {
			return nil, err
		}
		switch {
		case m.Type != "response" || m.ID != id:
		case !m.Success:
			return nil, m.refused()
		default:
			return m, nil
		}
	}
	return nil, nil
}

// note takes what a record says beside the answer that is awaited.
func (c *cancellation) note(ctx context.Context, m *message) error {
	switch m.Type {
	case "extension_ui_request":
		return c.cancelDialogs(ctx)
	case "agent_settled":
		c.result.Turn = c.result.Turn || c.live
	case "agent_start":
		c.begun = c.live
	case "response":
		c.live = c.live || strings.HasPrefix(m.ID, c.options.ID+"/")
		if m.Command == "prompt" && c.prompts[m.ID] {
			delete(c.prompts, m.ID)
			c.begun = true
		}
		if m.Command == "bash" && c.live && m.bashCancelled() {
			c.result.Bash++
		}
	}
	return nil
}

// explain says what was waited for when there was no more time.
func (c *cancellation) explain(err error) error {
	switch code := wire.CodeOf(err); {
	case errors.Is(err, io.EOF):
		return ended()
	case code == wire.CodeTimeout || code == client.CodeCancelled:
		return &wire.Error{
			Code:    code,
			Message: "Pi has not said in time that its turn has ended",
			Advice:  "call again with the same ID, or end the session",
			Err:     err,
		}
	}
	return err
}

func notPi() error {
	return &wire.Error{
		Code:    wire.CodeInvalidArgument,
		Message: "the session does not run Pi, and its program would take the orders for its own input",
		Advice:  "signal the session's process, or end it",
	}
}

func ended() error {
	return &wire.Error{
		Code:    wire.CodeSessionNotRunning,
		Message: "the agent has ended, and its turn with it",
		Advice:  "read how it ended from its exit record",
	}
}
