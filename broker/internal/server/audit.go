package server

import (
	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/session"
	"git.jb.codes/jb/paseo-sandbox/shared/peercred"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

func (c *conn) audit(e audit.Entry, err error) {
	c.endpoint.server.audit(c.peer, c.endpoint.scope.String(), e, err)
}

// ReloadOnSignal is a reload that the kernel says nobody's name for.
func (s *Server) ReloadOnSignal() {
	s.audit(peercred.Peer{}, "(signal)", audit.Entry{Operation: wire.Reload{}.Kind(), Changed: true}, s.reload(session.Operator()))
}

// reload is the operator's alone. What is wrong with a configuration is the
// operator's to know, on whichever way it was asked for.
func (s *Server) reload(scope session.Scope) error {
	if !scope.IsOperator() {
		return adminOnly("run broker-admin reload")
	}
	err := s.Reload()
	if err != nil {
		e := session.AsError(err)
		s.Log.Error("reload_failed", "code", string(e.Code), "message", e.Message, "configuration", "the one before is still in force")
	}
	return err
}

func adminOnly(what string) error {
	return &wire.Error{Code: wire.CodeAdminOnly, Message: "only the admin socket takes this request", Advice: "have the operator " + what}
}

// audit writes the one line about a decision. It never holds what a client
// sent, except for an id or name of the right form.
func (s *Server) audit(peer peercred.Peer, scope string, e audit.Entry, err error) {
	e.UID, e.GID, e.PID, e.Deployment = peer.UID(), peer.GID(), peer.PID(), scope
	s.Manager.Audit.Record(e.Decided(err))
	if err != nil && session.AsError(err).Err != nil {
		s.Log.Warn("request_failed", "operation", e.Operation, "session", e.Session, "error", err.Error())
	}
}
