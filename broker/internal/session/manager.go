package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/cgroup"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/disk"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/runsc"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
)

// Deadlines.
const (
	createTimeout = 60 * time.Second
	readyTimeout  = 30 * time.Second
	sendTimeout   = 5 * time.Second
	killTimeout   = 10 * time.Second
	deathTimeout  = time.Second
	// unattachedGrace is what TERM gets when a profile ends lost processes.
	unattachedGrace = 10 * time.Second
	// handoverTimeout bounds how long a broker that stops waits for bridges
	// that are being replaced, and handoverTick is the time between two looks.
	handoverTimeout = 15 * time.Second
	handoverTick    = 5 * time.Millisecond
	// reasonTimeout bounds how long a bridge waits that says that the sandbox
	// has ended before the broker has seen it.
	reasonTimeout = 5 * time.Second
)

// undoTimeout is shorter in tests of what never ends.
var undoTimeout = 60 * time.Second

// Runtime is what a Manager needs of runsc; *runsc.Runtime has it.
type Runtime interface {
	Create(ctx context.Context, id wire.SessionID, bundleDir string, reaperUID uint32, s runsc.Streams) (sandboxPID int, reaper *process.Process, err error)
	Start(ctx context.Context, id wire.SessionID) error
	Signal(ctx context.Context, id wire.SessionID, sig string) error
	Delete(ctx context.Context, id wire.SessionID) error
	List(ctx context.Context) (map[string]wire.SessionID, error)
	Tidy() error
}

// Config is what a Manager works with. Everything in it stays the caller's and
// must outlive the Manager.
type Config struct {
	Layout layout.Layout
	// Registry is the configuration to begin with; Use replaces it.
	Registry *registry.Config
	Runtime  Runtime
	// Groups are the cgroups of the sessions, and Images their homes.
	Groups *cgroup.Groups
	Images *disk.Images
	// CheckArtifacts says before each session whether runsc and the rootfs are
	// still those that were verified. The rootfs is pinned at Layout.RootfsPin.
	CheckArtifacts func() error
	// Bridge is the open, checked program of the bridge.
	Bridge int
	// Boot is the kernel's boot id.
	Boot string
	// Clock tells how long sessions have been without a writer.
	Clock *record.Clock
	Log   hclog.Logger
	// Audit gets what happens to sessions; nil means the log.
	Audit *audit.Trail
}

// Manager owns all sessions. It is safe for concurrent use.
//
// Requests are answered within a Scope: a session outside of it is as one that
// never existed.
type Manager struct {
	Config
	store  *record.Store
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup // the goroutines of sessions

	// idle is held for reading while a container is made, and for writing
	// while what runsc shares between containers is removed.
	idle sync.RWMutex

	// registry is the configuration in force.
	registry atomic.Pointer[registry.Config]

	// reaping is the turn of whoever looks for what nobody needs.
	reaping turn
	// started is when Recover was called, by the Clock.
	started uint64

	mu       sync.Mutex
	sessions map[wire.SessionID]*session
}

// turn is held by one at a time.
type turn chan struct{}

// take waits for the turn. Error: CodeTimeout.
func (t turn) take(ctx context.Context, busy string) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &wire.Error{Code: wire.CodeTimeout, Message: busy, Advice: "try again; nothing was changed", Err: context.Cause(ctx)}
	}
}

func (t turn) release() { <-t }

// session is one session. Whoever holds its turn may change it.
type session struct {
	m      *Manager
	log    hclog.Logger
	paths  layout.Session
	ctx    context.Context // ends with the manager or the session
	cancel context.CancelFunc
	turn   turn
	// reasoned is closed when the sandbox is dead and the reason known; ended
	// when its container is removed too; gone when nothing is left.
	reasoned, ended, gone chan struct{}

	mu       sync.Mutex
	attended bool // attend runs: a bridge that is dead will be replaced
	rec      record.Record
	spares   map[wire.DescriptorName]int
	reaper   *process.Process
	bridge   *bridge
	// peers may use the session's socket: its deployment's users.
	peers    []uint32
	restarts []time.Time
	// reported is the exit as the bridge knows it; signals are those that were
	// sent; oom and crowded are what the kernel says of memory and threads.
	reported     *wire.Exit
	signals      map[string]bool
	oom, crowded bool
	// orphaned says that the reaper died before its sandbox.
	orphaned bool
	// known is the reason that an earlier broker found, or that a restart of
	// the host gives.
	known wire.Reason
}

// New makes a manager. Recover comes next, then requests.
func New(c Config) *Manager {
	if c.Audit == nil {
		c.Audit = audit.ToLog(c.Log)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &Manager{Config: c, store: record.Open(c.Layout.Records()), ctx: ctx, cancel: cancel, reaping: make(turn, 1), sessions: make(map[wire.SessionID]*session)}
	m.registry.Store(c.Registry)
	return m
}

// Close lets go of all sessions, which go on, and waits for the end of what
// the manager was doing. Sessions that were being made are undone.
func (m *Manager) Close() error {
	m.awaitBridges()
	m.mu.Lock()
	m.cancel() // admit looks at it under the lock
	m.mu.Unlock()
	m.work.Wait()
	m.mu.Lock()
	all := m.sorted(Operator())
	m.mu.Unlock()
	for _, s := range all {
		s.dropSpares()
		s.closeProcesses()
	}
	return errors.Join(m.release(), m.Clock.Save())
}

// awaitBridges waits until no bridge is being replaced: meanwhile our spares
// alone keep the pipes of its session.
func (m *Manager) awaitBridges() {
	m.mu.Lock()
	all := m.sorted(Operator())
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(m.ctx, handoverTimeout)
	defer cancel()
	for _, s := range all {
		for s.take(ctx) == nil {
			missing := s.bridgeMissing()
			s.release()
			if !missing {
				break
			}
			time.Sleep(handoverTick)
		}
	}
}

// release removes what all containers share, if there is none: what runsc keeps
// for them, and the parent of their cgroups, which it would miss if it went
// between two steps of a create. It
// does not wait for a session that is being made.
func (m *Manager) release() error {
	if m.count() > 0 {
		return nil
	}
	m.idle.Lock()
	defer m.idle.Unlock()
	if m.count() > 0 {
		return nil
	}
	return errors.Join(m.Runtime.Tidy(), m.Groups.RemoveEmpty(m.Groups.Parent()))
}

func (m *Manager) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.sessions)
}

// newSession makes the object alone; nothing on the host.
func (m *Manager) newSession(r record.Record) *session {
	s := &session{
		m: m, log: m.Log.With("session", string(r.Session), "deployment", r.Deployment),
		paths: m.Layout.Session(r.Deployment, r.Container, r.Session), rec: r,
		turn: make(turn, 1), reasoned: make(chan struct{}), ended: make(chan struct{}), gone: make(chan struct{}),
		spares: make(map[wire.DescriptorName]int), signals: make(map[string]bool),
	}
	s.ctx, s.cancel = context.WithCancel(m.ctx)
	return s
}

// admit reserves an id, a uid and a place among the deployment's sessions. The
// session's turn is the caller's.
func (m *Manager) admit(d *registry.Deployment, r wire.Create, p *registry.Profile) (*session, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	var epoch [8]byte
	if _, err := rand.Read(epoch[:]); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() != nil {
		return nil, stopping()
	}
	current := m.registry.Load().Deployments[d.ID]
	if current == nil || current.Container != d.Container {
		return nil, &wire.Error{Code: wire.CodePermissionDenied, Message: "the deployment is not registered any more as it was", Advice: "connect to its socket again, or have the operator register it"}
	}
	if err := d.Admits(p, m.spools(d.ID)); err != nil {
		return nil, err
	}
	bridgeUID, reaperUID, err := m.freeUIDs()
	if err != nil {
		return nil, err
	}
	s := m.newSession(record.Record{
		Session: wire.SessionID(hex.EncodeToString(id[:])), Deployment: d.ID, Container: d.Container,
		Workspace: r.Workspace, Folder: r.Folder, Profile: r.Profile, State: wire.StateCreating, Epoch: wire.Epoch(hex.EncodeToString(epoch[:])),
		CreatedAt: uint64(time.Now().UnixMilli()), Boot: m.Boot, BridgeUID: bridgeUID, ReaperUID: reaperUID,
		Custody: record.Custody{
			Framing: p.Framing, MaxRecord: uint64(p.MaxRecord), MaxInput: uint64(p.MaxInput),
			SpoolLimit: uint64(p.Spool), Overflow: p.Overflow, Terminate: p.Unattached == registry.UnattachedTerminate,
		},
		Policy: record.Policy{EndAbandoned: p.EndAbandoned.Millis(), DeleteEnded: p.DeleteEnded.Millis()}, VacantSince: m.Clock.Now(),
	})
	s.peers = current.PeerUIDs
	s.rec.Cgroup = m.Groups.Path(s.rec.Session)
	s.turn <- struct{}{}
	m.sessions[s.rec.Session] = s
	m.work.Add(1)
	return s, nil
}

// spools returns what the spool of each session of a deployment may hold, in
// bytes. The caller holds the lock.
func (m *Manager) spools(deployment string) []uint64 {
	var all []uint64
	for _, s := range m.sorted(Of(deployment)) {
		all = append(all, s.rec.Custody.SpoolLimit)
	}
	return all
}

func (m *Manager) freeUIDs() (bridge, reaper uint32, err error) {
	used := make(map[uint32]bool, len(m.sessions))
	for _, s := range m.sessions {
		used[s.rec.BridgeUID] = true
		used[s.rec.ReaperUID] = true
	}
	b := m.registry.Load().Bridge
	for i := range b.Pairs() {
		if bridge, reaper = b.Pair(i); !used[bridge] && !used[reaper] {
			return bridge, reaper, nil
		}
	}
	return 0, 0, &wire.Error{Code: wire.CodeTooManySessions, Message: "all users of the bridges are in use", Advice: "delete sessions that have ended, or have the operator raise bridge.uid_count"}
}

// sorted returns the sessions of a scope in the order of their ids. The
// caller holds the lock.
func (m *Manager) sorted(scope Scope) []*session {
	var all []*session
	for _, s := range m.sessions {
		if scope.holds(s.rec.Deployment) {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *session) int { return cmp.Compare(a.rec.Session, b.rec.Session) })
	return all
}

func (m *Manager) find(scope Scope, id wire.SessionID) (*session, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sessions[id]; s != nil && scope.holds(s.rec.Deployment) {
		return s, nil
	}
	return nil, &wire.Error{Code: wire.CodeUnknownSession, Message: "there is no such session", Advice: "list the sessions"}
}

// Inspect returns what is known of a session. Error: CodeUnknownSession.
func (m *Manager) Inspect(scope Scope, id wire.SessionID) (wire.SessionInfo, error) {
	s, err := m.find(scope, id)
	if err != nil {
		return wire.SessionInfo{}, err
	}
	return s.info(), nil
}

// List returns at most wire.MaxSessionPage sessions whose ids come after the
// given one, and whether there are more.
func (m *Manager) List(scope Scope, after wire.SessionID) (page []wire.SessionInfo, more bool) {
	m.mu.Lock()
	all := m.sorted(scope)
	m.mu.Unlock()
	for _, s := range all {
		if s.rec.Session <= after {
			continue
		}
		if len(page) == wire.MaxSessionPage {
			return page, true
		}
		page = append(page, s.info())
	}
	return page, false
}

func (s *session) info() wire.SessionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.rec.Info()
	i.Socket = layout.SocketName(s.rec.Session)
	now := s.m.Clock.Now()
	if i.HasWriter = s.rec.HasWriter; !i.HasWriter && s.rec.VacantSince > 0 {
		i.VacantMillis = now - min(now, s.rec.VacantSince)
	}
	i.Due, _, i.DueMillis = due(&s.rec, now, s.m.started)
	return i
}

// happened writes into the audit what nobody asked for.
func (s *session) happened(operation, code string) {
	s.m.Audit.Happened(operation, s.rec.Deployment, string(s.rec.Session), code)
}

// take waits for the session's turn.
func (s *session) take(ctx context.Context) error { return s.turn.take(ctx, "the session is busy") }

func (s *session) release() { s.turn.release() }

// update changes the record and saves it. The in-memory record changes even if
// the disk fails. A session that is gone is not brought back.
func (s *session) update(f func(*record.Record)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if isClosed(s.gone) {
		return errGone
	}
	f(&s.rec)
	return s.m.store.Save(s.rec)
}

// note is update for what must happen even on a full disk: ending a session is
// what makes room. A broker that starts from the old record finds the session
// ended, and deletes it when asked again.
func (s *session) note(f func(*record.Record)) {
	if err := s.update(f); err != nil {
		s.log.Error("record_unsaved", "error", err.Error())
	}
}

var errGone = errors.New("the session is gone")

func (s *session) state() wire.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.State
}

// lives reports whether the sandbox is there.
func lives(state wire.State) bool {
	return state == wire.StateRunning || state == wire.StateUnattached || state == wire.StateStalled
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func stopping() error {
	return &wire.Error{Code: wire.CodeBrokerUnreachable, Message: "the broker is stopping", Advice: "connect again when it is back"}
}
