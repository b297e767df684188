package session

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// R12: a scope that nobody made reaches nothing, nor does one without an id.
func TestZeroScope(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "")
	ctx := context.Background()
	for name, scope := range map[string]Scope{"zero": {}, "no id": Of(""), "another": Of("unknown")} {
		if _, err := m.Inspect(scope, info.Session); wire.CodeOf(err) != wire.CodeUnknownSession {
			t.Errorf("%s inspects: %v", name, err)
		}
		if page, more := m.List(scope, ""); len(page) != 0 || more {
			t.Errorf("%s lists %+v", name, page)
		}
		if err := m.Signal(ctx, scope, info.Session, "KILL"); wire.CodeOf(err) != wire.CodeUnknownSession {
			t.Errorf("%s signals: %v", name, err)
		}
		if _, err := m.Terminate(ctx, scope, info.Session, 0); wire.CodeOf(err) != wire.CodeUnknownSession {
			t.Errorf("%s terminates: %v", name, err)
		}
		if err := m.Delete(ctx, scope, info.Session); err != nil {
			t.Errorf("%s deletes: %v", name, err)
		}
	}
	if i, err := m.Inspect(Operator(), info.Session); err != nil || i.State != wire.StateRunning || i.BridgePID != info.BridgePID {
		t.Errorf("the session is %+v, %v", i, err)
	}
	s.delete(m, info.Session)
}

// R12: no turn and no lock of a session is waited for before its scope is
// looked at: another deployment can't find out that it is busy.
func TestScopeComesFirst(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "")
	busy := m.sessions[info.Session]
	busy.turn <- struct{}{}
	busy.mu.Lock()
	free := sync.OnceFunc(func() {
		busy.mu.Unlock()
		busy.release()
	})
	defer free()
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx := context.Background()
		m.Delete(ctx, Of("two"), info.Session)
		m.Terminate(ctx, Of("two"), info.Session, 0)
		m.Signal(ctx, Of("two"), info.Session, "KILL")
		m.Inspect(Of("two"), info.Session)
		m.List(Of("two"), "")
	}()
	s.eventually("all are refused", func() bool { return isClosed(done) })
	free()
	s.delete(m, info.Session)
}

// with returns the configuration with another deployment "one"; nil removes it.
func (s *system) with(d *registry.Deployment) *registry.Config {
	c := *s.config
	c.Deployments = map[string]*registry.Deployment{"two": s.config.Deployments["two"]}
	if d != nil {
		c.Deployments["one"] = d
	}
	return &c
}

// socketMode returns the owner and permissions of a session's socket.
func socketMode(t *testing.T, path string) string {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %o", st.Sys().(*syscall.Stat_t).Uid, st.Mode().Perm())
}

// R12: sessions keep what they have; who may connect to their sockets follows
// the registry, and so does the next bridge.
func TestUseUsers(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "")
	path := s.l.Session("one", false, info.Session).Socket
	d := *s.config.Deployments["one"]
	for _, c := range []struct {
		uids []uint32
		want string
	}{{[]uint32{1000}, "1000 600"}, {[]uint32{1000, 1001}, "0 660"}, {[]uint32{1001}, "1001 600"}, {nil, "0 600"}, {[]uint32{1002}, "1002 600"}} {
		next := d
		next.PeerUIDs = c.uids
		config := s.with(&next)
		if c.uids == nil {
			config = s.with(nil)
		}
		if err := m.Use(config); err != nil {
			t.Fatal(err)
		}
		if got := socketMode(t, path); got != c.want {
			t.Errorf("the socket for %v: got %s, want %s", c.uids, got, c.want)
		}
		if i, err := m.Inspect(Operator(), info.Session); err != nil || i.State != wire.StateRunning || i.BridgePID != info.BridgePID {
			t.Errorf("the session is %+v, %v", i, err)
		}
	}
	s.kill(int(info.BridgePID))
	s.eventually("a bridge for the new users", s.said("serves [1002]"))
	// What a broker finds that starts with other users.
	s.eventually("the bridge is replaced", func() bool {
		i, err := m.Inspect(Operator(), info.Session)
		return err == nil && i.BridgePID != info.BridgePID && i.State == wire.StateRunning
	})
	m.Close()
	s.config.Deployments["one"].PeerUIDs = []uint32{1003}
	m = s.manager()
	if got := socketMode(t, path); got != "1003 600" {
		t.Errorf("after a restart the socket is %s", got)
	}
	s.delete(m, info.Session)
}

// What sessions that are there forbid is refused, names the key, and changes
// nothing; without them it is allowed.
func TestUseRefuses(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "")
	d := *s.config.Deployments["one"]
	d.Container = true
	moved := s.with(s.config.Deployments["one"])
	moved.Bridge.FirstUID += 50
	for key, c := range map[string]*registry.Config{"deployments/one.toml: container": s.with(&d), "bridge.first_uid": moved} {
		err := m.Use(c)
		if wire.CodeOf(err) != wire.CodeRestartRequired || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: got %v", key, err)
		}
		if m.registry.Load() != s.config {
			t.Errorf("%s: the configuration has changed", key)
		}
	}
	wider := s.with(s.config.Deployments["one"])
	wider.Bridge.FirstUID -= 2
	wider.Bridge.UIDCount += 2
	if err := m.Use(wider); err != nil {
		t.Errorf("a wider range: %v", err)
	}
	s.delete(m, info.Session)
	if err := m.Use(s.with(&d)); err != nil {
		t.Errorf("without sessions: %v", err)
	}
}

// R34: a lowered limit stops new sessions only; a removed deployment makes
// none, and its sessions stay the operator's to end.
func TestUseFewer(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	infos := []wire.SessionInfo{s.create(m, ""), s.create(m, "")}
	d := *s.config.Deployments["one"]
	d.MaxSessions = 1
	d.Workspaces = map[string]*registry.Workspace{}
	if err := m.Use(s.with(&d)); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	old := s.config.Deployments["one"]
	limited := *old
	limited.MaxSessions = 1
	for name, c := range map[string]struct {
		d    *registry.Deployment
		code wire.Code
	}{"lowered": {&limited, wire.CodeTooManySessions}, "without the workspace": {&d, wire.CodeUnknownWorkspace}} {
		if _, err := m.Create(ctx, c.d, wire.Create{ID: 1, Workspace: "project"}); wire.CodeOf(err) != c.code {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if err := m.Use(s.with(nil)); err != nil {
		t.Fatal(err)
	}
	// A request that was looked up before the deployment went.
	if _, err := m.Create(ctx, old, wire.Create{ID: 1, Workspace: "project"}); wire.CodeOf(err) != wire.CodePermissionDenied {
		t.Errorf("removed: got %v", err)
	}
	if page, _ := m.List(Operator(), ""); len(page) != 2 || page[0].State != wire.StateRunning {
		t.Errorf("the operator sees %+v", page)
	}
	for _, i := range infos {
		s.delete(m, i.Session)
	}
}

// R12: while users change all the time, sessions are made and deleted; in the
// end each socket belongs to the users that there are then.
func TestUseStorm(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	var configs [2]*registry.Config
	for i := range configs {
		d := *s.config.Deployments["one"]
		d.PeerUIDs = []uint32{1000 + uint32(i)}
		configs[i] = s.with(&d)
	}
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for ; !isClosed(stop); n++ {
			if err := m.Use(configs[n%2]); err != nil {
				t.Error(err)
			}
		}
		done <- n
	}()
	var makers sync.WaitGroup
	for range 2 {
		makers.Go(func() {
			for i := range 4 {
				info, err := m.Create(context.Background(), s.config.Deployments["one"], wire.Create{ID: 1, Workspace: "project"})
				if err != nil {
					t.Error(err)
					return
				}
				if i < 3 {
					if err := m.Delete(context.Background(), Of("one"), info.Session); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	makers.Wait()
	close(stop)
	want := fmt.Sprintf("%d 600", 1000+(<-done-1)%2)
	page, _ := m.List(Operator(), "")
	for _, i := range page {
		if got := socketMode(t, s.l.Session("one", false, i.Session).Socket); got != want {
			t.Errorf("a socket is %s, want %s", got, want)
		}
		s.delete(m, i.Session)
	}
}
