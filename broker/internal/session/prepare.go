package session

import (
	"context"
	"errors"
	"fmt"
	"os"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/bundle"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/runsc"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/workspace"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// creation is what is needed only while a session is made.
type creation struct {
	workspace *registry.Workspace
	profile   *registry.Profile
	request   wire.Create
	command   []string
	// credentials are for Pi alone: a fixed program has no use for them.
	credentials map[string]*registry.Credential
	// agent holds the agent's ends of the pipes until runsc has them.
	agent runsc.Streams
}

// plan looks up everything that the request names. It fills in the default
// profile, and the workspace and folder in place of a path.
func plan(d *registry.Deployment, r *wire.Create) (*creation, error) {
	var err error
	if r.Workspace, r.Folder, err = d.Resolve(*r); err != nil {
		return nil, err
	}
	r.Path = ""
	if r.Profile == "" {
		r.Profile = d.DefaultProfile
	}
	c := &creation{workspace: d.Workspaces[r.Workspace], profile: d.Profiles[r.Profile], request: *r, agent: noStreams}
	if c.profile == nil {
		return nil, &wire.Error{Code: wire.CodeUnknownProfile, Message: fmt.Sprintf("there is no profile %.70q", r.Profile), Advice: "describe the deployment to see its profiles"}
	}
	if c.profile.Kind == registry.KindPi {
		c.credentials = d.Credentials
		c.command = bundle.PiCommand(r)
		return c, nil
	}
	if r.AgentSession != "" || r.Model != "" || r.Thinking != "" || len(r.Attachments) > 0 {
		return nil, &wire.Error{Code: wire.CodeInvalidArgument, Message: fmt.Sprintf("the profile %q runs a fixed program, which takes no agent session, model, thinking or attachments", r.Profile), Advice: "leave them out, or choose a profile of kind pi"}
	}
	c.command = c.profile.Command
	return c, nil
}

func (s *session) doPin(_ context.Context, c *creation) error {
	err := s.pin(c.workspace)
	var e *wire.Error
	if errors.As(err, &e) {
		what := fmt.Sprintf("the workspace %q", s.rec.Workspace)
		if s.rec.Folder != "" {
			what = fmt.Sprintf("the folder %.80q of %s", s.rec.Folder, what)
		}
		// The cause names the host's path, which is not the client's to know.
		return &wire.Error{Code: e.Code, Message: what + " can't be used: " + e.Message, Advice: e.Advice, Err: e.Err}
	}
	return err
}

// pin resolves the workspace's root and the folder below it, and pins that
// folder alone: the agent sees nothing of the rest.
func (s *session) pin(w *registry.Workspace) error {
	protected, err := s.m.registry.Load().Protected(s.m.Layout, w.ReadOnly)
	if err != nil {
		return err
	}
	dir, err := workspace.Open(w.Root)
	if err != nil {
		return err
	}
	defer dir.Close()
	// What is below the root is as far apart as the root is.
	if err := dir.Apart(protected, s.m.Layout.Mounts()); err != nil {
		return err
	}
	if s.rec.Folder != "" {
		if dir, err = dir.Sub(s.rec.Folder); err != nil {
			return err
		}
		defer dir.Close()
	}
	if err := os.Mkdir(s.paths.Pin, 0o700); err != nil {
		return err
	}
	return dir.Pin(s.paths.Pin, w.ReadOnly)
}

func (s *session) undoPin(context.Context) error { return workspace.Unpin(s.paths.Pin) }
