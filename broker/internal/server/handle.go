package server

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/session"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// orderTimeout bounds orders that are carried out even if the client goes.
const orderTimeout = 2 * time.Minute

// handle does one request, with the given id, and answers it. A session whose
// client can't be told of it is removed again.
func (c *conn) handle(m wire.Message, id uint64) {
	began := time.Now()
	e := c.entry(m)
	answer, about, err := c.do(m)
	e.Session, e.Duration = string(about), time.Since(began)
	e.Changed = e.Changed && err == nil
	created, made := answer.(wire.Created)
	if made = made && err == nil; made {
		e.Workspace, e.Profile = created.Session.Workspace, created.Session.Profile
	}
	c.audit(e, err)
	if err != nil {
		answer = session.AsError(err).ToMessage(id)
	}
	if !c.send(answer) && made {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), orderTimeout)
		defer cancel()
		e.Operation = "undo"
		c.audit(e, c.endpoint.server.Manager.Delete(ctx, c.endpoint.scope, created.Session.Session))
	}
}

// entry is what the audit says of a request before it is worked on: names of
// the registry, never others, and whether there is something to change.
func (c *conn) entry(m wire.Message) audit.Entry {
	e := audit.Entry{Operation: m.Kind()}
	var id wire.SessionID
	switch m := m.(type) {
	case wire.Create:
		if d := c.endpoint.server.config().Deployments[c.endpoint.scope.Deployment()]; d != nil {
			if d.Workspaces[m.Workspace] != nil {
				e.Workspace = m.Workspace
			}
			if profile := cmp.Or(m.Profile, d.DefaultProfile); d.Profiles[profile] != nil {
				e.Profile = profile
			}
		}
		e.Changed = true
		return e
	case wire.Collect:
		e.Changed = !m.DryRun
		return e
	case wire.Reload:
		e.Changed = true
		return e
	case wire.InspectSession:
		id = m.Session
	case wire.SignalSession:
		id = m.Session
	case wire.TerminateSession:
		id = m.Session
	case wire.DeleteSession:
		id = m.Session
	}
	info, err := c.endpoint.server.Manager.Inspect(c.endpoint.scope, id)
	if err != nil {
		return e
	}
	e.Workspace, e.Profile = info.Workspace, info.Profile
	switch m.(type) {
	case wire.SignalSession, wire.TerminateSession:
		e.Changed = info.State != wire.StateExited
	case wire.DeleteSession:
		e.Changed = true
	}
	return e
}

// do returns the answer, and the session that it was about. It sees one
// configuration from its beginning to its end.
func (c *conn) do(m wire.Message) (wire.Message, wire.SessionID, error) {
	manager, scope, config := c.endpoint.server.Manager, c.endpoint.scope, c.endpoint.server.config()
	if !c.endpoint.allows(config, c.peer) {
		return nil, "", denied() // not any more
	}
	// What ends something goes on without the client; what makes something
	// does not.
	order, cancel := context.WithTimeout(c.endpoint.server.ctx, orderTimeout)
	defer cancel()
	switch m := m.(type) {
	case wire.Create:
		if scope.IsOperator() {
			return nil, "", &wire.Error{Code: wire.CodePermissionDenied, Message: "the admin socket makes no sessions", Advice: "use the deployment's socket"}
		}
		if err := manager.Audit.Available(); err != nil {
			return nil, "", err
		}
		info, err := manager.Create(c.ctx, config.Deployments[scope.Deployment()], m)
		return wire.Created{ID: m.ID, Session: info}, info.Session, err
	case wire.InspectSession:
		info, err := manager.Inspect(scope, m.Session)
		return wire.SessionReply{ID: m.ID, Session: info}, m.Session, err
	case wire.ListSessions:
		page, more := manager.List(scope, m.After)
		return wire.SessionList{ID: m.ID, Sessions: page, More: more}, "", nil
	case wire.SignalSession:
		return wire.Done{ID: m.ID}, m.Session, manager.Signal(order, scope, m.Session, m.Signal)
	case wire.TerminateSession:
		info, err := manager.Terminate(order, scope, m.Session, time.Duration(m.GraceMillis)*time.Millisecond)
		return wire.SessionReply{ID: m.ID, Session: info}, m.Session, err
	case wire.DeleteSession:
		return wire.Done{ID: m.ID}, m.Session, manager.Delete(order, scope, m.Session)
	case wire.Collect:
		if !scope.IsOperator() {
			return nil, "", adminOnly("run broker-admin gc")
		}
		page, more, err := manager.Collect(order, m.DryRun, m.After)
		return wire.Collected{ID: m.ID, Findings: page, More: more}, "", err
	case wire.Reload:
		return wire.Done{ID: m.ID}, "", c.endpoint.server.reload(scope)
	case wire.Describe:
		answer, err := describe(config, scope, m)
		return answer, "", err
	}
	return nil, "", &wire.Error{Code: wire.CodeUnknownMessage, Message: "this is no request", Advice: "check the protocol version"}
}

// describe tells host paths and users to the operator only.
func describe(config *registry.Config, scope session.Scope, m wire.Describe) (wire.Message, error) {
	if !scope.IsOperator() {
		if m.Deployment != "" {
			return nil, &wire.Error{Code: wire.CodeAdminOnly, Message: "only the admin socket takes the name of a deployment", Advice: "leave it out: this socket has one deployment"}
		}
		return description(m.ID, config.Deployments[scope.Deployment()], false), nil
	}
	d := config.Deployments[m.Deployment]
	if d == nil {
		return nil, &wire.Error{Code: wire.CodeUnknownDeployment, Message: "there is no such deployment", Advice: "list the deployments, or register it and run broker-admin reload"}
	}
	return description(m.ID, d, true), nil
}

func description(id uint64, d *registry.Deployment, admin bool) wire.Deployment {
	answer := wire.Deployment{
		ID: id, Deployment: d.ID, DefaultProfile: d.DefaultProfile, Profiles: slices.Sorted(maps.Keys(d.Profiles)),
	}
	for _, name := range slices.Sorted(maps.Keys(d.Workspaces)) {
		w := d.Workspaces[name]
		i := wire.WorkspaceInfo{Name: name, ReadOnly: w.ReadOnly, Subfolders: w.Subfolders, ClientPath: w.ClientPath, UID: uint64(w.UID), GID: uint64(w.GID)}
		if admin {
			i.Root = w.Root
		}
		answer.Workspaces = append(answer.Workspaces, i)
	}
	if admin {
		for _, uid := range d.PeerUIDs {
			answer.PeerUIDs = append(answer.PeerUIDs, uint64(uid))
		}
	}
	return answer
}
