package serve

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/session"
	"git.jb.codes/jb/paseo-sandbox/shared/peercred"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
)

const (
	// MaxConnections is how many clients may be connected at once. The users
	// have equal shares, so that none can lock out another, of at least
	// minShare.
	MaxConnections = 64
	minShare       = 4
	// messageTimeout is how long a message may take from its first byte to its
	// last.
	messageTimeout = 30 * time.Second
	// helloTimeout is how long a connection may be silent before its hello.
	helloTimeout = 10 * time.Second
	// stallTimeout closes a connection whose client reads nothing at all for
	// so long while there is something for it to read.
	stallTimeout = 30 * time.Second
	// refuseTimeout bounds the farewell to a peer that is not let in.
	refuseTimeout = time.Second

	acceptPause = 100 * time.Millisecond
)

// Server serves one session on one listener.
type Server struct {
	session  *session.Session
	listener *net.UnixListener
	uids     []uint64
	log      hclog.Logger
	stall    time.Duration
	message  time.Duration

	mu     sync.Mutex
	conns  map[*conn]struct{}
	closed bool
	stop   chan struct{}
	wg     sync.WaitGroup
}

// New makes a server for clients of the given users. It takes ownership of the
// listener.
func New(s *session.Session, l *net.UnixListener, uids []uint64, log hclog.Logger) *Server {
	return &Server{session: s, listener: l, uids: uids, log: log, stall: stallTimeout, message: messageTimeout, conns: make(map[*conn]struct{}), stop: make(chan struct{})}
}

// Run accepts clients until Close.
func (s *Server) Run() {
	for {
		nc, err := s.listener.AcceptUnix()
		if err == nil {
			s.admit(nc)
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		s.log.Error("accept_failed", "error", err.Error())
		select {
		case <-time.After(acceptPause):
		case <-s.stop:
			return
		}
	}
}

// Close ends all connections and waits for them.
func (s *Server) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.stop)
	}
	for c := range s.conns {
		c.nc.Close()
	}
	s.mu.Unlock()
	s.listener.Close()
	s.wg.Wait()
}

// admit checks who connects, once, at accept.
func (s *Server) admit(nc *net.UnixConn) {
	peer, err := peercred.Of(nc)
	if err != nil {
		s.log.Error("peer_unknown", "error", err.Error())
	}
	allowed := err == nil && slices.ContainsFunc(s.uids, func(uid uint64) bool { return uid < 1<<32 && peer.Is(uint32(uid)) })
	s.log.Info("connection", "peer_uid", peer.UID(), "peer_gid", peer.GID(), "peer_pid", peer.PID(), "allowed", allowed)
	if !allowed {
		s.refuse(nc, &wire.Error{
			Code:    wire.CodePermissionDenied,
			Message: "this user may not use the session",
			Advice:  "connect as a user that the deployment allows",
		})
		return
	}
	c := newConn(s, nc, peer)
	if err := s.register(c); err != nil {
		s.refuse(nc, err)
		return
	}
	s.wg.Go(c.run)
}

func (s *Server) register(c *conn) *wire.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for other := range s.conns {
		if other.peer.UID() == c.peer.UID() {
			n++
		}
	}
	if s.closed || n >= max(MaxConnections/len(s.uids), minShare) {
		return &wire.Error{
			Code:    wire.CodeTooManyConnections,
			Message: fmt.Sprintf("this user has %d connections to the session", n),
			Advice:  "close connections that are not needed",
		}
	}
	s.conns[c] = struct{}{}
	return nil
}

func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

func (s *Server) refuse(nc *net.UnixConn, e *wire.Error) {
	defer nc.Close()
	if nc.SetWriteDeadline(time.Now().Add(refuseTimeout)) != nil {
		return
	}
	// A peer that does not read its refusal misses it.
	_ = wire.WriteMessage(nc, e.ToMessage(0), wire.MinPeerFrame)
}
