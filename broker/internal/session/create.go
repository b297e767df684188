package session

import (
	"context"
	"errors"
	"fmt"
	"os"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/bundle"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/runsc"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// step is one step of a session's making, with its undoing. An undo needs
// nothing but the record, is idempotent, and does not mind that its step was
// done half, or never: it serves a failed creation, a deletion, and a broker
// that starts after a crash.
type step struct {
	name string
	do   func(*session, context.Context, *creation) error
	undo func(*session, context.Context) error
}

// steps are done in this order and undone in the opposite one.
var steps = []step{
	{"record", (*session).doRecord, (*session).undoRecord},
	{"pin", (*session).doPin, (*session).undoPin},
	{"state", (*session).doState, (*session).undoState},
	{"bundle", (*session).doBundle, (*session).undoBundle},
	{"spool", (*session).doSpool, (*session).undoSpool},
	{"socket", (*session).doSocket, (*session).undoSocket},
	{"container", (*session).doContainer, (*session).undoContainer},
	{"bridge", (*session).doBridge, (*session).undoBridge},
	{"start", (*session).doStart, (*session).undoStart},
}

// Create makes a session of the deployment and starts it. When it fails, or
// the context ends before, nothing is left. Errors: those of
// registry.Resolve and of package workspace, CodeUnknownProfile,
// CodeTooManySessions, CodeDeploymentSpoolFull, CodeInvalidArgument, CodeInvalidAttachment,
// CodeCredentialUnusable, CodeRootfsMissing, CodeDiskUnavailable,
// CodeLimitsUnavailable, CodeRuntimeFailed, CodeBridgeFailed, CodeInternal.
func (m *Manager) Create(ctx context.Context, d *registry.Deployment, request wire.Create) (wire.SessionInfo, error) {
	c, err := plan(d, &request)
	if err != nil {
		return wire.SessionInfo{}, err
	}
	s, err := m.admit(d, c.request, c.profile)
	if err != nil {
		return wire.SessionInfo{}, err
	}
	defer m.work.Done()
	defer s.release()
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()
	err = s.build(ctx, c)
	c.closeAgent()
	if err != nil {
		return wire.SessionInfo{}, err
	}
	s.begin()
	return s.info(), nil
}

// build does all steps, or undoes those that it began.
func (s *session) build(ctx context.Context, c *creation) error {
	for i, st := range steps {
		err := ctx.Err()
		if err == nil {
			err = st.do(s, ctx, c)
		}
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			err = &wire.Error{Code: wire.CodeTimeout, Message: "the session's creation was given up", Advice: "try again; nothing of it is left", Err: err}
		}
		s.log.Error("create_failed", "step", st.name, "error", err.Error())
		return errors.Join(typed(err, st.name), s.undo(ctx, i))
	}
	return nil
}

// undo undoes the steps up to and with the last one given. What can't be
// undone stays in the record for the next try.
func (s *session) undo(ctx context.Context, last int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	s.cancel()
	s.dropSpares()
	var failed error
	for i := last; i >= 0; i-- {
		if i == 0 && failed != nil {
			break
		}
		if err := steps[i].undo(s, ctx); err != nil {
			s.log.Error("undo_failed", "step", steps[i].name, "error", err.Error())
			failed = errors.Join(failed, fmt.Errorf("undo %s: %w", steps[i].name, err))
		}
	}
	if failed != nil {
		return &wire.Error{Code: wire.CodeInternal, Message: "the session can't be removed completely", Advice: "delete it again; the broker's log says what was in the way", Err: failed}
	}
	return s.m.release()
}

// typed makes sure that an error has a code and tells a client no host path.
func typed(err error, step string) error {
	var e *wire.Error
	if errors.As(err, &e) {
		return err
	}
	return &wire.Error{Code: wire.CodeInternal, Message: "the session can't be made: its " + step + " failed", Advice: "have the operator look at the broker's log", Err: err}
}

func (s *session) doRecord(context.Context, *creation) error { return s.m.store.Save(s.rec) }

func (s *session) undoRecord(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if isClosed(s.gone) {
		return nil
	}
	if err := s.m.store.Remove(s.rec.Session); err != nil {
		return err
	}
	close(s.gone)
	s.m.mu.Lock()
	delete(s.m.sessions, s.rec.Session)
	s.m.mu.Unlock()
	return nil
}

func (s *session) doBundle(_ context.Context, c *creation) error {
	if err := s.m.CheckArtifacts(); err != nil {
		return &wire.Error{Code: wire.CodeArtifactMismatch, Message: "runsc or the root file system is not the one that was verified", Advice: "have the operator run doctor and restart the broker", Err: err}
	}
	if err := os.Mkdir(s.paths.Bundle, 0o700); err != nil {
		return err
	}
	attachments, err := s.writeAttachments(c.request.Attachments)
	if err != nil {
		return err
	}
	files, err := s.copyCredentials(c)
	if err != nil {
		return err
	}
	return bundle.Write(s.paths.Bundle, bundle.Build(bundle.Session{
		ID: s.rec.Session, Rootfs: s.m.Layout.RootfsPin(), Command: c.command, Env: bundle.PiEnv(),
		UID: c.workspace.UID, GID: c.workspace.GID, Workspace: s.paths.Pin, ReadOnly: c.workspace.ReadOnly,
		StateDir: s.home(c.profile), AttachmentsDir: attachments, Files: files, CgroupPath: s.cgroup(),
		Limits:   s.limits(c.profile),
		Hostname: "sandbox",
	}))
}

func (s *session) undoBundle(context.Context) error { return removeTree(s.paths.Bundle) }

// doContainer makes the pipes and the container.
func (s *session) doContainer(ctx context.Context, c *creation) error {
	if err := s.makePipes(c); err != nil {
		return err
	}
	s.m.idle.RLock()
	pid, reaper, err := s.m.Runtime.Create(ctx, s.rec.Session, s.paths.Bundle, s.rec.ReaperUID, c.agent)
	s.m.idle.RUnlock()
	// Whoever keeps an opposite end keeps a pipe from ending.
	c.closeAgent()
	if err != nil {
		return runtimeFailed("create", err)
	}
	s.mu.Lock()
	s.reaper = reaper
	s.mu.Unlock()
	sandbox, err := process.Open(pid)
	if err != nil {
		return runtimeFailed("create", err)
	}
	defer sandbox.Close()
	identities, err := s.identities()
	if err != nil {
		return err
	}
	err = s.update(func(r *record.Record) {
		r.Sandbox, r.Reaper = sandbox.ID(), reaper.ID()
		r.Custody.Descriptors = identities
	})
	if err != nil {
		return err
	}
	return s.verifyLimits(pid, s.limits(c.profile))
}

func (s *session) doStart(ctx context.Context, _ *creation) error {
	if err := s.m.Runtime.Start(ctx, s.rec.Session); err != nil {
		return runtimeFailed("start", err)
	}
	now := s.m.Clock.Now()
	return s.update(func(r *record.Record) { r.State, r.VacantSince = wire.StateRunning, now })
}

// undoStart has nothing to do: what runs is ended with its container.
func (s *session) undoStart(context.Context) error { return nil }

func runtimeFailed(what string, err error) error {
	return &wire.Error{Code: wire.CodeRuntimeFailed, Message: "runsc could not " + what + " the sandbox", Advice: "have the operator look at the broker's log; it says what runsc said", Err: err}
}

var noStreams = runsc.Streams{Stdin: -1, Stdout: -1, Stderr: -1, Exit: -1}

func (c *creation) closeAgent() {
	for _, fd := range []int{c.agent.Stdin, c.agent.Stdout, c.agent.Stderr, c.agent.Exit} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	c.agent = noStreams
}
