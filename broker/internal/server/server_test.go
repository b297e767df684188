package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/cgroup"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/disk"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/runsc"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/session"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
)

// peerSocket names the socket for a child that connects as another user.
const peerSocket = "SERVER_TEST_SOCKET"

func TestMain(m *testing.M) {
	if path := os.Getenv(peerSocket); path != "" {
		os.Exit(playPeer(path))
	}
	if os.Getenv(peerInherits) != "" {
		os.Exit(playHeir())
	}
	goleak.VerifyTestMain(m)
}

// noRuntime has no containers and makes none.
type noRuntime struct{}

var errNone = errors.New("no runtime")

func (noRuntime) Create(context.Context, wire.SessionID, string, uint32, runsc.Streams) (int, *process.Process, error) {
	return 0, nil, errNone
}
func (noRuntime) Start(context.Context, wire.SessionID) error             { return errNone }
func (noRuntime) Signal(context.Context, wire.SessionID, string) error    { return errNone }
func (noRuntime) Delete(context.Context, wire.SessionID) error            { return nil }
func (noRuntime) List(context.Context) (map[string]wire.SessionID, error) { return nil, nil }
func (noRuntime) Tidy() error                                             { return nil }

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

type system struct {
	t         *testing.T
	dir       string
	log       *syncBuffer
	config    *registry.Config
	server    *Server
	endpoints map[string]*Endpoint
	mu        sync.Mutex
	reloaded  error // what a reload returns
}

type deployment = registry.Deployment

func (s *system) reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reloaded
}

func (s *system) setReload(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reloaded = err
}

func newSystem(t *testing.T) *system { return newLimited(t, Defaults) }

// newLimited is newSystem with other limits.
func newLimited(t *testing.T, limits Limits) *system {
	return newWith(t, limits, func(_ string, log hclog.Logger) *audit.Trail { return audit.ToLog(log) })
}

// newAudited is newSystem with an audit that is made for its folder.
func newAudited(t *testing.T, trail func(dir string, log hclog.Logger) *audit.Trail) *system {
	return newWith(t, Defaults, trail)
}

func newWith(t *testing.T, limits Limits, trail func(dir string, log hclog.Logger) *audit.Trail) *system {
	t.Helper()
	rootonly.Test(t)
	dir, err := os.MkdirTemp("", "srv-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := layout.At(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := &system{t: t, dir: dir, log: &syncBuffer{}, endpoints: make(map[string]*Endpoint)}
	newDeployment := func(id string, uids ...uint32) *registry.Deployment {
		return &registry.Deployment{
			ID: id, PeerUIDs: uids, MaxSessions: 2, DefaultProfile: "pi",
			Workspaces: map[string]*registry.Workspace{"project": {Root: dir + "/ws", UID: 1000, GID: 1000}},
			Profiles:   map[string]*registry.Profile{"pi": {Kind: registry.KindPi}},
		}
	}
	config := &registry.Config{
		Bridge:      registry.Bridge{FirstUID: 2000000, UIDCount: 10},
		Deployments: map[string]*registry.Deployment{"user": newDeployment("user", 1000), "root": newDeployment("root", 0, 1001)},
	}
	log := hclog.New(&hclog.LoggerOptions{Output: s.log})
	auditTrail := trail(dir, log)
	groups, err := cgroup.Open(l.CgroupParent())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(l.Var, 0o700); err != nil {
		t.Fatal(err)
	}
	clock, err := record.OpenClock(l.Clock(), "this", record.Monotonic)
	if err != nil {
		t.Fatal(err)
	}
	m := session.New(session.Config{Layout: l, Clock: clock, Registry: config, Groups: groups, Images: &disk.Images{}, Runtime: noRuntime{}, CheckArtifacts: func() error { return nil }, Log: log, Audit: auditTrail})
	s.server = New(Config{Manager: m, Registry: config, Reload: s.reload, Limits: limits, Log: log})
	s.config = config
	for name, scope := range map[string]session.Scope{"user": session.Of("user"), "root": session.Of("root"), "admin": session.Operator()} {
		s.serve(name, scope)
	}
	t.Cleanup(func() {
		s.server.Close()
		if err := errors.Join(m.Close(), auditTrail.Close()); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
		if t.Failed() {
			t.Logf("the log:\n%s", s.log)
		}
	})
	return s
}

func (s *system) serve(name string, scope session.Scope) {
	s.t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.socket(name), Net: "unix"})
	if err != nil {
		s.t.Fatal(err)
	}
	// Credentials decide here, not modes.
	if err := os.Chmod(s.socket(name), 0o666); err != nil {
		s.t.Fatal(err)
	}
	s.endpoints[name] = s.server.Serve(l, scope)
}

func (s *system) socket(name string) string { return s.dir + "/" + name + ".sock" }

// peer is a client that does what it likes.
type peer struct {
	t  testing.TB
	nc *net.UnixConn
	c  *wire.Conn
}

func (s *system) dial(name string) *peer {
	s.t.Helper()
	nc, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.socket(name), Net: "unix"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(2 * time.Minute))
	return &peer{t: s.t, nc: nc, c: wire.NewConn(nc, wire.MaxBrokerFrame)}
}

// hello is dial with a successful hello.
func (s *system) hello(name string) *peer {
	s.t.Helper()
	p := s.dial(name)
	if m := p.ask(wire.Hello{Protocol: wire.ProtocolBroker, Versions: []uint64{1}, MaxFrame: wire.MaxBrokerFrame}); m.Kind() != "hello" {
		s.t.Fatalf("got %+v", m)
	}
	return p
}

func (p *peer) read() wire.Message {
	p.t.Helper()
	m, err := p.c.ReadMessage(wire.BrokerReplies)
	if err != nil {
		p.t.Fatal(err)
	}
	return m
}

func (p *peer) ask(m wire.Message) wire.Message {
	p.t.Helper()
	if err := p.c.WriteMessage(m); err != nil {
		p.t.Fatal(err)
	}
	return p.read()
}

func (p *peer) wantCode(m wire.Message, code wire.Code, id uint64) {
	p.t.Helper()
	if e, ok := m.(wire.ErrorMessage); !ok || e.Code != code || e.ID != id || e.Advice == "" {
		p.t.Errorf("got %+v, want %s for request %d", m, code, id)
	}
}

// wantEnd makes sure that the broker has closed the connection.
func (p *peer) wantEnd() {
	p.t.Helper()
	if m, err := p.c.ReadMessage(wire.BrokerReplies); err == nil {
		p.t.Errorf("the connection goes on: %+v", m)
	}
}

// playPeer connects and prints how it is welcomed.
func playPeer(path string) int {
	nc, err := net.Dial("unix", path)
	if err != nil {
		fmt.Print(err)
		return 1
	}
	return speak(nc)
}

// speak prints how the connection is welcomed.
func speak(nc net.Conn) int {
	defer nc.Close()
	c := wire.NewConn(nc, wire.MaxBrokerFrame)
	// A refused peer may find the connection closed.
	_ = c.WriteMessage(wire.Hello{Protocol: wire.ProtocolBroker, Versions: []uint64{1}, MaxFrame: wire.MaxBrokerFrame})
	m, err := c.ReadMessage(wire.BrokerReplies)
	switch m := m.(type) {
	case wire.Hello:
		fmt.Print("welcome")
	case wire.ErrorMessage:
		fmt.Print(m.Code)
	default:
		fmt.Print(err)
	}
	return 0
}

// R11, R12: who may use which socket is what the kernel says of the peer; uid
// 0 has no rights on a deployment's socket unless it is registered there, and
// nobody else any on the operator's. R19: each is one audit line.
func TestPeers(t *testing.T) {
	s := newSystem(t)
	for _, c := range []struct {
		socket string
		uid    uint32
		want   string
	}{
		{"user", 1000, "welcome"}, {"user", 1001, "permission_denied"}, {"user", 0, "permission_denied"}, {"user", 65534, "permission_denied"},
		{"root", 0, "welcome"}, {"root", 1001, "welcome"}, {"root", 1000, "permission_denied"},
		{"admin", 0, "welcome"}, {"admin", 1000, "permission_denied"}, {"admin", 65534, "permission_denied"},
	} {
		before := strings.Count(s.log.String(), "audit:")
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{peerSocket + "=" + s.socket(c.socket), "GORACE=atexit_sleep_ms=0"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.uid, Gid: c.uid}}
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != c.want {
			t.Errorf("uid %d on %s: got %q, %v, want %q", c.uid, c.socket, out, err, c.want)
		}
		name, decision, code := c.socket, "allow", "ok"
		if name == "admin" {
			name = `"(admin)"`
		}
		if c.want != "welcome" {
			decision, code = "deny", c.want
		}
		lines := strings.Split(s.log.String(), "\n")
		line := fmt.Sprintf("deployment=%s operation=connect session=\"\" decision=%s code=%s", name, decision, code)
		if n := strings.Count(s.log.String(), "audit:"); n != before+1 || !strings.Contains(lines[len(lines)-2], line) {
			t.Errorf("uid %d on %s: the audit says %q, want one line with %q", c.uid, c.socket, lines[len(lines)-2], line)
		}
	}
}

// R10, R12, R19: bad input gets an error with its code; where it breaks the
// framing or the encoding the connection ends, and the service goes on.
func TestBadInput(t *testing.T) {
	s := newSystem(t)
	frame := func(payload string) []byte { return wire.AppendFrame(nil, []byte(payload)) }
	request := func(m wire.Message) []byte {
		b, err := wire.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		return wire.AppendFrame(nil, b)
	}
	hello := request(wire.Hello{Protocol: wire.ProtocolBroker, Versions: []uint64{1}, MaxFrame: wire.MaxBrokerFrame})
	id := wire.SessionID(strings.Repeat("a", 32))
	before := countFDs(t)
	for name, c := range map[string]struct {
		first bool // before hello
		send  []byte
		code  wire.Code
		id    uint64
		goes  bool // the connection goes on
	}{
		"truncated frame":      {false, []byte{0, 0, 0, 9, 1}, wire.CodeFrameTruncated, 0, false},
		"truncated length":     {false, []byte{0, 0}, wire.CodeFrameTruncated, 0, false},
		"oversized length":     {false, binary.BigEndian.AppendUint32(nil, wire.MaxBrokerFrame+1), wire.CodeFrameTooLarge, 0, false},
		"huge length":          {false, []byte{0xff, 0xff, 0xff, 0xff}, wire.CodeFrameTooLarge, 0, false},
		"empty frame":          {false, []byte{0, 0, 0, 0}, wire.CodeInvalidMessage, 0, false},
		"garbage":              {false, frame("\xff\xfe garbage"), wire.CodeInvalidMessage, 0, false},
		"not a map":            {false, frame("\x01"), wire.CodeInvalidMessage, 0, false},
		"duplicate keys":       {false, frame("\xa3\x62id\x01\x62id\x02\x64type\x68describe"), wire.CodeInvalidMessage, 1, false},
		"deep nesting":         {false, frame(strings.Repeat("\x81", 1000) + "\x01"), wire.CodeInvalidMessage, 0, false},
		"indefinite length":    {false, frame("\xbf\xff"), wire.CodeInvalidMessage, 0, false},
		"unknown key":          {false, frame("\xa3\x62id\x07\x64evil\x01\x64type\x68describe"), wire.CodeInvalidMessage, 7, false},
		"unknown type":         {false, frame("\xa2\x62id\x07\x64type\x64exec"), wire.CodeUnknownMessage, 7, true},
		"a reply":              {false, request(wire.Done{ID: 5}), wire.CodeUnknownMessage, 5, true},
		"hello again":          {false, hello, wire.CodeInvalidMessage, 0, false},
		"not hello":            {true, request(wire.Describe{ID: 4}), wire.CodeHelloRequired, 4, false},
		"garbage before hello": {true, frame("\xff"), wire.CodeInvalidMessage, 0, false},
		"other version":        {true, request(wire.Hello{Protocol: wire.ProtocolBroker, Versions: []uint64{2}, MaxFrame: wire.MaxBrokerFrame}), wire.CodeUnsupportedVersion, 0, false},
		"other protocol":       {true, request(wire.Hello{Protocol: wire.ProtocolBridge, Versions: []uint64{1}, MaxFrame: wire.MaxBrokerFrame}), wire.CodeUnsupportedVersion, 0, false},
		"admin's request":      {false, request(wire.Describe{ID: 3, Deployment: "user"}), wire.CodeAdminOnly, 3, true},
		"unknown workspace":    {false, request(wire.Create{ID: 3, Workspace: "nothing"}), wire.CodeUnknownWorkspace, 3, true},
		"unknown profile":      {false, request(wire.Create{ID: 3, Workspace: "project", Profile: "nothing"}), wire.CodeUnknownProfile, 3, true},
		"unknown session":      {false, request(wire.InspectSession{ID: 3, Session: id}), wire.CodeUnknownSession, 3, true},
	} {
		t.Run(name, func(t *testing.T) {
			var p *peer
			if c.first {
				p = s.dial("root")
			} else {
				p = s.hello("root")
			}
			p.t = t
			audits := strings.Count(s.log.String(), "code="+string(c.code))
			if _, err := p.nc.Write(c.send); err != nil {
				t.Fatal(err)
			}
			if c.code == wire.CodeFrameTruncated {
				p.nc.CloseWrite()
			}
			p.wantCode(p.read(), c.code, c.id)
			if n := strings.Count(s.log.String(), "code="+string(c.code)); n != audits+1 {
				t.Errorf("there are %d audit lines more, want one", n-audits)
			}
			if !c.goes {
				p.wantEnd()
			} else if m := p.ask(wire.Describe{ID: 9}); m.Kind() != "deployment" {
				t.Errorf("the connection does not go on: %+v", m)
			}
			p.nc.Close()
			next := s.hello("root")
			if m := next.ask(wire.ListSessions{ID: 1}); m.Kind() != "sessionList" {
				t.Errorf("the service does not go on: %+v", m)
			}
			next.nc.Close()
		})
	}
	wantFDs(t, before)
}

// R12: what a client is told of its deployment holds no host path and no user;
// the operator is told both, and of the deployment that is asked for.
func TestDescribe(t *testing.T) {
	s := newSystem(t)
	d, ok := s.hello("root").ask(wire.Describe{ID: 1}).(wire.Deployment)
	if !ok || d.Deployment != "root" || len(d.Workspaces) != 1 || d.Workspaces[0].Root != "" || d.Workspaces[0].UID != 1000 || len(d.PeerUIDs) != 0 || d.DefaultProfile != "pi" {
		t.Errorf("the client is told %+v", d)
	}
	admin := s.hello("admin")
	d, ok = admin.ask(wire.Describe{ID: 1, Deployment: "user"}).(wire.Deployment)
	if !ok || d.Deployment != "user" || d.Workspaces[0].Root != s.dir+"/ws" || len(d.PeerUIDs) != 1 {
		t.Errorf("the operator is told %+v", d)
	}
	admin.wantCode(admin.ask(wire.Describe{ID: 2, Deployment: "none"}), wire.CodeUnknownDeployment, 2)
	admin.wantCode(admin.ask(wire.Describe{ID: 3}), wire.CodeUnknownDeployment, 3)
	admin.wantCode(admin.ask(wire.Create{ID: 4, Workspace: "project"}), wire.CodePermissionDenied, 4)
	if m := admin.ask(wire.DeleteSession{ID: 5, Session: wire.SessionID(strings.Repeat("0", 32))}); m.Kind() != "done" {
		t.Errorf("deleting nothing: %+v", m)
	}
}
