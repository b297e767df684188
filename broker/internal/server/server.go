package server

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/session"
	"git.jb.codes/jb/paseo-sandbox/shared/peercred"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
)

const (
	// maxConnections is how many connections one socket serves at a time.
	maxConnections = 64
	acceptBackoff  = 100 * time.Millisecond
)

// Server serves any number of sockets.
type Server struct {
	manager  *session.Manager
	registry *registry.Config
	log      hclog.Logger
	ctx      context.Context
	cancel   context.CancelFunc
	work     sync.WaitGroup
}

// New makes a server.
func New(m *session.Manager, r *registry.Config, log hclog.Logger) *Server {
	ctx, cancel := context.WithCancel(context.Background())
	return &Server{manager: m, registry: r, log: log, ctx: ctx, cancel: cancel}
}

// Serve accepts connections until Close; it returns at once. It takes
// ownership of the listener. The deployment is nil for the admin socket.
func (s *Server) Serve(l *net.UnixListener, d *registry.Deployment) {
	e := &endpoint{server: s, deployment: d, slots: make(chan struct{}, maxConnections)}
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		e.accept(l)
	}()
}

// Close ends all connections, and the creations that they wait for, and waits
// until the requests that were begun have ended.
func (s *Server) Close() {
	s.cancel()
	s.work.Wait()
}

// endpoint is one socket.
type endpoint struct {
	server     *Server
	deployment *registry.Deployment
	slots      chan struct{}
}

// name is the deployment's id as the audit shows it; no id has brackets.
func (e *endpoint) name() string {
	if e.deployment == nil {
		return "(admin)"
	}
	return e.deployment.ID
}

// allows reports whether the peer may use the socket. Uid 0 has no rights on a
// deployment's socket unless it is registered: root in a container is uid 0.
func (e *endpoint) allows(p peercred.Peer) bool {
	if e.deployment == nil {
		return p.Is(0)
	}
	return slices.ContainsFunc(e.deployment.PeerUIDs, p.Is)
}

func (e *endpoint) accept(l *net.UnixListener) {
	s := e.server
	stop := context.AfterFunc(s.ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	for {
		nc, err := l.AcceptUnix()
		if s.ctx.Err() != nil {
			if err == nil {
				nc.Close()
			}
			return
		}
		if err != nil {
			// Descriptors may be short for a moment; the socket stays.
			s.log.Error("accept_failed", "deployment", e.name(), "error", err.Error())
			select {
			case <-time.After(acceptBackoff):
			case <-s.ctx.Done():
			}
			continue
		}
		s.work.Add(1)
		go func() {
			defer s.work.Done()
			e.connection(nc)
		}()
	}
}

// connection decides about one connection by what the kernel said of its peer
// when it was made, and serves it.
func (e *endpoint) connection(nc *net.UnixConn) {
	defer nc.Close()
	c := newConn(e, nc)
	defer c.cancel()
	// Not with the client's interest: one that has closed its sending side
	// still reads its answers.
	stop := context.AfterFunc(e.server.ctx, func() { nc.Close() })
	defer stop()
	peer, err := peercred.Of(nc)
	if err != nil {
		e.server.log.Error("peer_unknown", "error", err.Error())
	}
	c.peer = peer
	if !e.allows(peer) {
		err = &wire.Error{Code: wire.CodePermissionDenied, Message: "this user may not use this socket", Advice: "have the operator add the uid to peer_uids, or use the socket of your own deployment"}
		c.audit(audit.Entry{Operation: "connect"}, err)
		c.refuse(err)
		return
	}
	select {
	case e.slots <- struct{}{}:
		defer func() { <-e.slots }()
	default:
		err = &wire.Error{Code: wire.CodeTooManyConnections, Message: "too many connections are open to this socket", Advice: "close some, or use one for several requests"}
		c.audit(audit.Entry{Operation: "connect"}, err)
		c.refuse(err)
		return
	}
	c.audit(audit.Entry{Operation: "connect"}, nil)
	c.serve()
}

// audit writes the one line about a decision. It never holds what a client
// sent, except for an id or name of the right form.
func (c *conn) audit(e audit.Entry, err error) {
	e.UID, e.GID, e.PID, e.Deployment = c.peer.UID(), c.peer.GID(), c.peer.PID(), c.endpoint.name()
	c.endpoint.server.manager.Audit.Record(e.Decided(err))
	var cause *wire.Error
	if errors.As(err, &cause) && cause.Err != nil {
		c.endpoint.server.log.Warn("request_failed", "operation", e.Operation, "session", e.Session, "error", err.Error())
	}
}
