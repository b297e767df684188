package client

import (
	"context"
	"fmt"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Times that calls to the broker may take when their context has no deadline.
const (
	brokerTimeout = 15 * time.Second
	// createTimeout covers the start of a sandbox on a busy machine.
	createTimeout = 90 * time.Second
	// endTimeout is what ending a session may take beside its grace.
	endTimeout = 60 * time.Second
	// collectTimeout is for many of them.
	collectTimeout = 10 * time.Minute
)

// Broker is one connection to a deployment's broker socket, or to the admin
// socket. Its methods may be called from several goroutines. A call whose
// context ends may still have its effect; the connection can be used further.
type Broker struct {
	link *link
	path string
}

// DialBroker connects to a broker. The error has CodeBrokerUnreachable when
// there is no socket, nobody listens on it (a broker that is gone), or this
// user may not open it (then errors.Is matches fs.ErrPermission);
// CodePermissionDenied when the broker itself refuses this user.
func DialBroker(ctx context.Context, socketPath string) (*Broker, error) {
	l, err := dial(ctx, brokerTarget, socketPath)
	if err != nil {
		return nil, err
	}
	b := &Broker{link: l, path: socketPath}
	go b.read()
	return b, nil
}

// read is the connection's reader. Close ends it.
func (b *Broker) read() {
	defer close(b.link.finished)
	var buf []byte
	for {
		payload, err := wire.ReadFrame(b.link.in, wire.MaxBrokerFrame, buf)
		if err != nil {
			b.link.fail(lost(b.link.target.peer, err))
			return
		}
		buf = payload
		if err := b.handle(payload); err != nil {
			b.link.fail(err)
			return
		}
	}
}

func (b *Broker) handle(payload []byte) error {
	m, id, err := wire.DecodeRequest(wire.BrokerReplies, payload)
	if err != nil {
		return lost(b.link.target.peer, err)
	}
	if e, ok := m.(wire.ErrorMessage); ok && id == 0 {
		return e.Err()
	}
	return b.link.deliver(id, m)
}

// Close ends the connection and its goroutine. Sessions live on.
func (b *Broker) Close() error { return b.link.close() }

// CreateOptions says what session to create; the fields are those of
// wire.Create.
type CreateOptions struct {
	// Workspace is a handle of the deployment's registry; Path, in its place, a
	// folder as this client sees it, which the broker looks up among the
	// registered client paths. Exactly one is given.
	Workspace string
	Path      string
	// Folder is a folder below either, where the registry allows it; empty
	// means all of it.
	Folder string
	// Profile names a launch profile; empty means the deployment's default.
	Profile string
	// AgentSession is the agent's own session id, to create or to resume.
	AgentSession string
	// Model is PROVIDER/MODEL; Thinking a level name. Both may be empty.
	Model    string
	Thinking string
	// Attachments are small files for the sandbox, at most
	// wire.MaxAttachmentBytes in all.
	Attachments []wire.Attachment
}

// Create creates a session and waits until its bridge accepts clients. A
// second session is made when it is called again after a timeout.
func (b *Broker) Create(ctx context.Context, o CreateOptions) (wire.SessionInfo, error) {
	ctx, cancel := bound(ctx, createTimeout)
	defer cancel()
	m, err := call[wire.Created](ctx, b.link, "creating the session", func(id uint64) wire.Message {
		return wire.Create{
			ID: id, Workspace: o.Workspace, Path: o.Path, Folder: o.Folder, Profile: o.Profile, AgentSession: o.AgentSession,
			Model: o.Model, Thinking: o.Thinking, Attachments: o.Attachments,
		}
	})
	return m.Session, err
}

// Inspect returns what the broker knows of a session.
func (b *Broker) Inspect(ctx context.Context, session wire.SessionID) (wire.SessionInfo, error) {
	ctx, cancel := bound(ctx, brokerTimeout)
	defer cancel()
	m, err := call[wire.SessionReply](ctx, b.link, "inspecting the session", func(id uint64) wire.Message {
		return wire.InspectSession{ID: id, Session: session}
	})
	return m.Session, err
}

// List returns all sessions of the deployment in the order of their ids; on
// the admin socket those of all deployments. It asks page by page: a session
// that is made or deleted meanwhile may or may not be among them.
func (b *Broker) List(ctx context.Context) ([]wire.SessionInfo, error) {
	ctx, cancel := bound(ctx, brokerTimeout)
	defer cancel()
	var all []wire.SessionInfo
	var after wire.SessionID
	for {
		page, err := call[wire.SessionList](ctx, b.link, "listing the sessions", func(id uint64) wire.Message {
			return wire.ListSessions{ID: id, After: after}
		})
		if err != nil {
			return nil, err
		}
		for _, info := range page.Sessions {
			if info.Session <= after {
				return nil, b.broken("the session list is not in order")
			}
			after = info.Session
		}
		all = append(all, page.Sessions...)
		if !page.More {
			return all, nil
		}
		if len(page.Sessions) == 0 {
			return nil, b.broken("an empty page of sessions promises more")
		}
	}
}

func (b *Broker) broken(format string, args ...any) error {
	err := violation(b.link.target.peer, format, args...)
	b.link.fail(err)
	return err
}

// Signal sends a signal, named without SIG (INT, TERM, HUP, KILL, USR1,
// USR2), to the session's first process.
func (b *Broker) Signal(ctx context.Context, session wire.SessionID, name string) error {
	ctx, cancel := bound(ctx, brokerTimeout)
	defer cancel()
	_, err := call[wire.Done](ctx, b.link, "signalling the session", func(id uint64) wire.Message {
		return wire.SignalSession{ID: id, Session: session, Signal: name}
	})
	return err
}

// Terminate sends TERM, then KILL after the grace, 0 to 60 s, and waits until
// the session's process has ended. The session's records stay.
func (b *Broker) Terminate(ctx context.Context, session wire.SessionID, grace time.Duration) (wire.SessionInfo, error) {
	millis, err := graceMillis(grace)
	if err != nil {
		return wire.SessionInfo{}, err
	}
	ctx, cancel := bound(ctx, endTimeout+grace)
	defer cancel()
	m, err := call[wire.SessionReply](ctx, b.link, "terminating the session", func(id uint64) wire.Message {
		return wire.TerminateSession{ID: id, Session: session, GraceMillis: millis}
	})
	return m.Session, err
}

// Delete ends the session if it lives and removes everything that it left. It
// is idempotent, also for a session that never existed.
func (b *Broker) Delete(ctx context.Context, session wire.SessionID) error {
	ctx, cancel := bound(ctx, endTimeout)
	defer cancel()
	_, err := call[wire.Done](ctx, b.link, "deleting the session", func(id uint64) wire.Message {
		return wire.DeleteSession{ID: id, Session: session}
	})
	return err
}

// Reload makes the broker read its configuration again; admin socket only.
// Sessions go on. After an error the configuration before is still in force:
// CodeInvalidConfig says where it is wrong, CodeRestartRequired what can't
// change while the broker runs.
func (b *Broker) Reload(ctx context.Context) error {
	ctx, cancel := bound(ctx, brokerTimeout)
	defer cancel()
	_, err := call[wire.Done](ctx, b.link, "reloading the configuration", func(id uint64) wire.Message {
		return wire.Reload{ID: id}
	})
	return err
}

// Collect has the broker remove what sessions have left behind, and do what
// policies have due, or only list it (dry); admin socket only. It asks page by
// page. A finding that could not be removed says why.
func (b *Broker) Collect(ctx context.Context, dry bool) ([]wire.Finding, error) {
	ctx, cancel := bound(ctx, collectTimeout)
	defer cancel()
	var all []wire.Finding
	var after wire.SessionID
	for {
		page, err := call[wire.Collected](ctx, b.link, "collecting leftovers", func(id uint64) wire.Message {
			return wire.Collect{ID: id, DryRun: dry, After: after}
		})
		if err != nil {
			return all, err
		}
		for _, f := range page.Findings {
			if f.Session < after {
				return all, b.broken("the findings are not in order")
			}
		}
		all = append(all, page.Findings...)
		if !page.More {
			return all, nil
		}
		if len(page.Findings) == 0 || all[len(all)-1].Session == after {
			return all, b.broken("a page of findings promises more and does not go on")
		}
		after = all[len(all)-1].Session
	}
}

// Describe returns what a deployment offers. The name of the deployment is
// empty on a deployment's own socket and required on the admin socket.
func (b *Broker) Describe(ctx context.Context, deployment string) (wire.Deployment, error) {
	ctx, cancel := bound(ctx, brokerTimeout)
	defer cancel()
	return call[wire.Deployment](ctx, b.link, "describing the deployment", func(id uint64) wire.Message {
		return wire.Describe{ID: id, Deployment: deployment}
	})
}

// SessionSocket returns the path of the session's socket for DialSession. It
// is beside the broker's socket that this connection was dialled at, because a
// container sees that folder at another place; the admin socket has none
// beside it. It is empty while the session has no socket.
func (b *Broker) SessionSocket(info wire.SessionInfo) string {
	return besideSocket(b.path, info.Socket)
}

func graceMillis(grace time.Duration) (uint64, error) {
	if grace < 0 || grace > wire.MaxGraceMillis*time.Millisecond {
		return 0, &wire.Error{
			Code:    wire.CodeInvalidArgument,
			Message: fmt.Sprintf("a grace of %v is not between 0 and %d s", grace, wire.MaxGraceMillis/1000),
			Advice:  "choose a grace of at most a minute",
		}
	}
	return uint64(grace.Milliseconds()), nil
}
