package clienttest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Names that a Server knows.
const (
	Deployment = "test"
	Workspace  = "site"
	Profile    = "pi"
)

// pageSize makes lists of a few sessions have several pages.
const pageSize = 3

// Server is a broker with its sessions.
type Server struct {
	// Dir is the folder of the sockets.
	Dir   string
	agent Agent

	mu       sync.Mutex
	count    int
	sessions map[wire.SessionID]*hosted
	requests []wire.Message

	listener net.Listener
	quit     chan struct{}
	owned    sync.WaitGroup
}

type hosted struct {
	*session
	listener net.Listener
	quit     chan struct{}
}

// New starts a server whose sessions run the agent.
func New(agent Agent) (*Server, error) {
	// A test's own temporary folder is often too long for the paths of sockets.
	dir, err := os.MkdirTemp("", "ps-")
	if err != nil {
		return nil, err
	}
	s := &Server{Dir: dir, agent: agent, sessions: make(map[wire.SessionID]*hosted), quit: make(chan struct{})}
	if err = os.Mkdir(filepath.Join(dir, "s"), 0o700); err == nil {
		s.listener, err = net.Listen("unix", s.Socket())
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s.serve(s.listener, s.quit, s.broker)
	return s, nil
}

// Start is New for a test, whose cleanup closes the server.
func Start(t testing.TB, agent Agent) *Server {
	t.Helper()
	s, err := New(agent)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Socket is the path of the broker's socket.
func (s *Server) Socket() string { return filepath.Join(s.Dir, "broker.sock") }

// Requests returns what the broker was asked, hellos left out.
func (s *Server) Requests() []wire.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Sessions returns the sessions that exist.
func (s *Server) Sessions() []wire.SessionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []wire.SessionInfo
	for _, h := range s.sessions {
		h.session.mu.Lock()
		all = append(all, h.info)
		h.session.mu.Unlock()
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Session < all[j].Session })
	return all
}

// Add creates a session as a client's request would.
func (s *Server) Add(t testing.TB) wire.SessionInfo {
	t.Helper()
	info, err := s.create(wire.Create{ID: 1, Workspace: Workspace})
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// KillBridge ends all connections to a session, as the death of its bridge
// would; the next one finds the session as it was.
func (s *Server) KillBridge(id wire.SessionID) {
	if h := s.find(id); h != nil {
		h.change(func() {
			close(h.quit)
			h.quit = make(chan struct{})
		})
	}
}

// ExpireLease does to a session's writer what its bridge does when the lease
// has run out; it reports whether there is a writer.
func (s *Server) ExpireLease(id wire.SessionID) bool {
	h := s.find(id)
	if h == nil {
		return false
	}
	var old *connection
	var generation uint64
	h.change(func() { old, generation, h.writer = h.writer, h.generation, nil })
	return old != nil && old.send(wire.Fenced{Generation: generation}) == nil
}

// Close ends all sessions and connections, and removes the folder.
func (s *Server) Close() {
	close(s.quit)
	s.listener.Close()
	for _, info := range s.Sessions() {
		s.remove(info.Session)
	}
	s.owned.Wait()
	os.RemoveAll(s.Dir)
}

// serve accepts connections until the listener is closed, and ends them when
// quit is.
func (s *Server) serve(l net.Listener, quit <-chan struct{}, handle func(net.Conn, <-chan struct{})) {
	s.owned.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.owned.Go(func() {
				done := make(chan struct{})
				s.owned.Go(func() {
					select {
					case <-quit:
					case <-done:
					}
					conn.Close()
				})
				handle(conn, quit)
				close(done)
			})
		}
	})
}

// greet answers the hello.
func greet(c *wire.Conn, set wire.Set, protocol wire.Protocol, max uint64) bool {
	m, err := c.ReadMessage(set)
	h, ok := m.(wire.Hello)
	if err != nil || !ok || h.Protocol != protocol || !slices.Contains(h.Versions, wire.Version) {
		c.WriteMessage((&wire.Error{Code: wire.CodeHelloRequired, Message: "a hello comes first"}).ToMessage(0))
		return false
	}
	c.LimitWrites(h.MaxFrame)
	return c.WriteMessage(wire.Hello{Protocol: protocol, Versions: []uint64{wire.Version}, MaxFrame: max}) == nil
}

func (s *Server) broker(conn net.Conn, quit <-chan struct{}) {
	c := wire.NewConn(conn, wire.MaxBrokerFrame)
	if !greet(c, wire.BrokerRequests, wire.ProtocolBroker, wire.MaxBrokerFrame) {
		return
	}
	for {
		m, id, err := c.ReadRequest(wire.BrokerRequests)
		if id == 0 {
			return
		}
		var reply wire.Message
		if err == nil {
			s.mu.Lock()
			s.requests = append(s.requests, m)
			s.mu.Unlock()
			reply, err = s.answer(id, m, quit)
		}
		if err != nil {
			e, ok := err.(*wire.Error)
			if !ok {
				e = &wire.Error{Code: wire.CodeInternal, Message: err.Error()}
			}
			reply = e.ToMessage(id)
		}
		if c.WriteMessage(reply) != nil {
			return
		}
	}
}

func (s *Server) answer(id uint64, m wire.Message, quit <-chan struct{}) (wire.Message, error) {
	switch m := m.(type) {
	case wire.Create:
		info, err := s.create(m)
		return wire.Created{ID: id, Session: info}, err
	case wire.InspectSession:
		info, err := s.info(m.Session)
		return wire.SessionReply{ID: id, Session: info}, err
	case wire.ListSessions:
		return s.list(id, m.After), nil
	case wire.SignalSession:
		h := s.find(m.Session)
		if h == nil {
			return nil, unknown(m.Session)
		}
		h.signal(m.Signal)
		return wire.Done{ID: id}, nil
	case wire.TerminateSession:
		info, err := s.terminate(m, quit)
		return wire.SessionReply{ID: id, Session: info}, err
	case wire.DeleteSession:
		s.remove(m.Session)
		return wire.Done{ID: id}, nil
	case wire.Describe:
		return wire.Deployment{
			ID: id, Deployment: Deployment, Profiles: []string{Profile}, DefaultProfile: Profile,
			Workspaces: []wire.WorkspaceInfo{{Name: Workspace, UID: 1000, GID: 1000}},
		}, nil
	}
	return nil, fmt.Errorf("no answer to %s", m.Kind())
}

func unknown(id wire.SessionID) *wire.Error {
	return &wire.Error{Code: wire.CodeUnknownSession, Message: fmt.Sprintf("there is no session %s", id), Advice: "list the sessions (paseo-sandbox ls)"}
}

func (s *Server) find(id wire.SessionID) *hosted {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id]
}

func (s *Server) info(id wire.SessionID) (wire.SessionInfo, error) {
	h := s.find(id)
	if h == nil {
		return wire.SessionInfo{}, unknown(id)
	}
	h.session.mu.Lock()
	defer h.session.mu.Unlock()
	return h.info, nil
}

func (s *Server) list(id uint64, after wire.SessionID) wire.SessionList {
	page := wire.SessionList{ID: id}
	for _, info := range s.Sessions() {
		if info.Session <= after {
			continue
		}
		if len(page.Sessions) == pageSize {
			page.More = true
			break
		}
		page.Sessions = append(page.Sessions, info)
	}
	return page
}

func (s *Server) create(m wire.Create) (wire.SessionInfo, error) {
	if m.Path != "" {
		return wire.SessionInfo{}, &wire.Error{Code: wire.CodePathUnregistered, Message: fmt.Sprintf("no workspace is registered for the path %q", m.Path), Advice: "name the workspace"}
	}
	if m.Workspace != Workspace {
		return wire.SessionInfo{}, &wire.Error{Code: wire.CodeUnknownWorkspace, Message: fmt.Sprintf("there is no workspace %q", m.Workspace), Advice: "list the workspaces of the deployment"}
	}
	s.mu.Lock()
	s.count++
	id := wire.SessionID(fmt.Sprintf("%08x00007000800000000000%04x", s.count*0x01010101, s.count))
	s.mu.Unlock()
	info := wire.SessionInfo{
		Session: id, Deployment: Deployment, Workspace: m.Workspace, Folder: m.Folder, Profile: Profile, State: wire.StateRunning,
		Epoch: wire.Epoch(strings.Repeat("e", 12) + fmt.Sprintf("%04x", s.count)), Socket: "s/" + string(id) + ".sock",
		CreatedAt: uint64(time.Now().UnixMilli()), Container: string(id), SandboxPID: 1, SandboxStart: 1, BridgePID: 1, BridgeStart: 1,
	}
	l, err := net.Listen("unix", filepath.Join(s.Dir, info.Socket))
	if err != nil {
		return wire.SessionInfo{}, err
	}
	h := &hosted{session: newSession(info), listener: l, quit: make(chan struct{})}
	s.mu.Lock()
	s.sessions[id] = h
	s.mu.Unlock()
	s.owned.Go(func() { h.run(s.agent, m) })
	s.serve(l, nil, func(conn net.Conn, _ <-chan struct{}) { s.bridge(h, conn) })
	return info, nil
}

func (s *Server) terminate(m wire.TerminateSession, quit <-chan struct{}) (wire.SessionInfo, error) {
	h := s.find(m.Session)
	if h == nil {
		return wire.SessionInfo{}, unknown(m.Session)
	}
	s.end(h, time.Duration(m.GraceMillis)*time.Millisecond, quit)
	return s.info(m.Session)
}

// end ends the agent: TERM, then KILL.
func (s *Server) end(h *hosted, grace time.Duration, quit <-chan struct{}) {
	exited := func() bool { return h.exit != nil }
	h.signal("TERM")
	late := make(chan struct{})
	timer := time.AfterFunc(grace, func() { close(late) })
	defer timer.Stop()
	if !h.await(late, exited) {
		h.signal("KILL")
		h.await(quit, exited)
	}
}

func (s *Server) remove(id wire.SessionID) {
	s.mu.Lock()
	h := s.sessions[id]
	delete(s.sessions, id)
	s.mu.Unlock()
	if h == nil {
		return
	}
	h.listener.Close()
	h.signal("KILL")
	h.await(nil, func() bool { return h.exit != nil })
	h.change(func() {
		close(h.quit)
		h.quit = make(chan struct{})
	})
}
