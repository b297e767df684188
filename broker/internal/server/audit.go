package server

import (
	"errors"
	"slices"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/session"
	"git.jb.codes/jb/paseo-sandbox/shared/peercred"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// failures are the codes of what was allowed and went wrong.
var failures = []wire.Code{wire.CodeInternal, wire.CodeRuntimeFailed, wire.CodeBridgeFailed, wire.CodeTimeout, wire.CodeBrokerUnreachable}

func (c *conn) audit(operation string, id wire.SessionID, err error) {
	c.endpoint.server.audit(c.peer, c.endpoint.scope.String(), operation, id, err)
}

// ReloadOnSignal is a reload that the kernel says nobody's name for.
func (s *Server) ReloadOnSignal() {
	s.audit(peercred.Peer{}, "(signal)", wire.Reload{}.Kind(), "", s.reload(session.Operator()))
}

// reload is the operator's alone. What is wrong with a configuration is the
// operator's to know, on whichever way it was asked for.
func (s *Server) reload(scope session.Scope) error {
	if !scope.IsOperator() {
		return &wire.Error{Code: wire.CodeAdminOnly, Message: "only the admin socket takes this request", Advice: "have the operator run broker-admin reload"}
	}
	err := s.Reload()
	if err != nil {
		e := session.AsError(err)
		s.Log.Error("reload_failed", "code", string(e.Code), "message", e.Message, "configuration", "the one before is still in force")
	}
	return err
}

// audit writes the one line about a decision. It never holds what a client
// sent, except for an id or name of the right form.
func (s *Server) audit(peer peercred.Peer, scope, operation string, id wire.SessionID, err error) {
	decision, code := "allow", "ok"
	if err != nil {
		code = string(wire.CodeOf(err))
		if !slices.Contains(failures, wire.CodeOf(err)) {
			decision = "deny"
		}
	}
	s.Log.Info("audit",
		"peer_uid", peer.UID(), "peer_gid", peer.GID(), "peer_pid", peer.PID(),
		"deployment", scope, "operation", operation, "session", string(id), "decision", decision, "code", code)
	var e *wire.Error
	if errors.As(err, &e) && e.Err != nil {
		s.Log.Warn("request_failed", "operation", operation, "session", string(id), "error", err.Error())
	}
}
