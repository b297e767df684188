package server

import (
	"context"
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

const acceptBackoff = 100 * time.Millisecond

// Limits bound what clients can use.
type Limits struct {
	// Connections is how many one socket serves at a time. Its users have equal
	// shares, so that none can lock out another, of at least UserConnections.
	Connections, UserConnections int
	// Requests is how many requests of one connection are worked on at a time;
	// further ones wait unread.
	Requests int
	// Hello is how long a new connection may be silent, Message the time from a
	// message's first byte to its last, Idle how long there may be none, and
	// Write how long an answer may take to be read.
	Hello, Message, Idle, Write time.Duration
}

// Defaults are the limits in use; tests have shorter ones.
var Defaults = Limits{
	Connections: 64, UserConnections: 4, Requests: 8,
	Hello: 10 * time.Second, Message: 10 * time.Second, Idle: time.Hour, Write: 10 * time.Second,
}

// share is how many connections each of a socket's users may have.
func (l Limits) share(users int) int { return max(l.Connections/max(users, 1), l.UserConnections) }

// Config is what a Server works with.
type Config struct {
	Manager *session.Manager
	// Registry is the configuration to begin with; Use replaces it.
	Registry *registry.Config
	// Reload reads the configuration again, and calls Use.
	Reload func() error
	Limits Limits
	Log    hclog.Logger
}

// Server serves any number of sockets.
type Server struct {
	Config
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu        sync.Mutex
	registry  *registry.Config
	endpoints map[*Endpoint]struct{}
}

// New makes a server.
func New(c Config) *Server {
	ctx, cancel := context.WithCancel(context.Background())
	return &Server{Config: c, ctx: ctx, cancel: cancel, registry: c.Registry, endpoints: make(map[*Endpoint]struct{})}
}

// Serve accepts connections until Close, or until the endpoint is closed; it
// returns at once. It takes ownership of the listener. Whoever comes in on it
// has this scope.
func (s *Server) Serve(l *net.UnixListener, scope session.Scope) *Endpoint {
	e := &Endpoint{server: s, scope: scope, conns: make(map[*conn]struct{})}
	e.ctx, e.cancel = context.WithCancel(s.ctx)
	s.mu.Lock()
	s.endpoints[e] = struct{}{}
	s.mu.Unlock()
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		e.accept(l)
	}()
	return e
}

// Use puts another configuration in place of the one in force. It holds for
// all requests from now on; connections of users who may not use their socket
// any more are ended.
func (s *Server) Use(c *registry.Config) {
	s.mu.Lock()
	var ended []*conn
	s.registry = c
	for e := range s.endpoints {
		for conn := range e.conns {
			if !e.allows(c, conn.peer) {
				ended = append(ended, conn)
			}
		}
	}
	s.mu.Unlock()
	for _, c := range ended {
		c.audit(audit.Entry{Operation: "disconnect"}, denied())
		c.end()
	}
}

func (s *Server) config() *registry.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.registry
}

// Close ends all connections, and the creations that they wait for, and waits
// until the requests that were begun have ended.
func (s *Server) Close() {
	s.cancel()
	s.work.Wait()
}

// Endpoint is one socket.
type Endpoint struct {
	server *Server
	scope  session.Scope
	ctx    context.Context
	cancel context.CancelFunc
	conns  map[*conn]struct{} // those that were let in; under the server's lock
}

// Close stops accepting, and ends the socket's connections; it does not wait
// for their requests.
func (e *Endpoint) Close() { e.cancel() }

// users are those who may use the socket. Uid 0 has no rights on a
// deployment's socket unless it is registered: root in a container is uid 0.
func (e *Endpoint) users(c *registry.Config) []uint32 {
	if e.scope.IsOperator() {
		return []uint32{0}
	}
	if d := c.Deployments[e.scope.Deployment()]; d != nil {
		return d.PeerUIDs
	}
	return nil
}

func (e *Endpoint) allows(c *registry.Config, p peercred.Peer) bool {
	return slices.ContainsFunc(e.users(c), p.Is)
}

// admit lets the connection in, or says why not. From then on Use sees it.
func (e *Endpoint) admit(c *conn) error {
	s := e.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if !e.allows(s.registry, c.peer) {
		return denied()
	}
	n := 0
	for other := range e.conns {
		if other.peer.UID() == c.peer.UID() {
			n++
		}
	}
	if n >= s.Limits.share(len(e.users(s.registry))) {
		return &wire.Error{Code: wire.CodeTooManyConnections, Message: "this user has too many connections to this socket", Advice: "close some, or use one for several requests"}
	}
	e.conns[c] = struct{}{}
	return nil
}

func (e *Endpoint) forget(c *conn) {
	e.server.mu.Lock()
	defer e.server.mu.Unlock()
	delete(e.conns, c)
}

func denied() error {
	return &wire.Error{Code: wire.CodePermissionDenied, Message: "this user may not use this socket", Advice: "have the operator add the uid to peer_uids, or use the socket of your own deployment"}
}

func (e *Endpoint) accept(l *net.UnixListener) {
	s := e.server
	stop := context.AfterFunc(e.ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.endpoints, e)
	}()
	for {
		nc, err := l.AcceptUnix()
		if e.ctx.Err() != nil {
			if err == nil {
				nc.Close()
			}
			return
		}
		if err != nil {
			// Descriptors may be short for a moment; the socket stays.
			s.Log.Error("accept_failed", "deployment", e.scope.String(), "error", err.Error())
			select {
			case <-time.After(acceptBackoff):
			case <-e.ctx.Done():
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
func (e *Endpoint) connection(nc *net.UnixConn) {
	c := newConn(e, nc)
	defer c.end()
	// Not with the client's interest: one that has closed its sending side
	// still reads its answers.
	stop := context.AfterFunc(e.ctx, c.end)
	defer stop()
	peer, err := peercred.Of(nc)
	if err != nil {
		e.server.Log.Error("peer_unknown", "error", err.Error())
	}
	c.peer = peer
	err = e.admit(c)
	c.audit(audit.Entry{Operation: "connect"}, err)
	if err != nil {
		c.refuse(err)
		return
	}
	defer e.forget(c)
	c.serve()
}
