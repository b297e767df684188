package session

import (
	"slices"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// find returns the session object.
func (s *system) find(m *Manager, id wire.SessionID) *session {
	s.t.Helper()
	found, err := m.find(Operator(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	return found
}

// kept are the roles that systemd keeps of a session.
func (s *system) kept(id wire.SessionID) []string {
	var roles []string
	for _, name := range s.play.Names() {
		if role, ok := strings.CutPrefix(name, string(id)+"."); ok {
			roles = append(roles, role)
		}
	}
	return roles
}

// R33: broker and bridge die at once, again and again, and the session goes on
// with what systemd kept, which is all of it and as it was.
func TestSystemdKeepsTheSpares(t *testing.T) {
	s := newSystem(t).withSystemd()
	id := s.crash("running")
	sandbox := processesOf(id)
	for range 3 {
		s.killBridges()
		m := s.manager()
		s.eventually("a bridge", func() bool { return s.find(m, id).info().BridgePID != 0 && !s.find(m, id).bridgeMissing() })
		found := s.find(m, id)
		if state := found.state(); state != wire.StateRunning {
			t.Fatalf("the session is %s", state)
		}
		names, fds := found.shared()
		if !slices.Equal(names, order) {
			t.Fatalf("got %v, want %v", names, order)
		}
		for i, fd := range fds {
			if id, err := identify(fd); err != nil || id != found.rec.Custody.Descriptors[names[i]] {
				t.Errorf("%s is %+v, %v", names[i], id, err)
			}
		}
		flags, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFL, 0)
		if err != nil || flags&unix.O_NONBLOCK == 0 {
			t.Errorf("%s has flags %#x, %v", names[0], flags, err)
		}
		if got := s.kept(id); len(got) != len(order) {
			t.Errorf("systemd keeps %v", got)
		}
		m.cancel() // as if it had died
		m.Close()
	}
	if got := processesOf(id); !slices.Equal(got, sandbox) {
		t.Errorf("the sandbox was %v, is %v", sandbox, got)
	}
	m := s.manager()
	s.delete(m, id)
	s.eventually("systemd keeps nothing", func() bool { return len(s.play.Names()) == 0 })
}

// R33: what systemd kept needs no bridge's word: with one that returns false
// descriptors the session goes on all the same.
func TestSystemdIsBelievedBeforeTheBridge(t *testing.T) {
	s := newSystem(t).withSystemd()
	id := s.crashWith("running", "lying")
	m := s.manager()
	s.eventually("refused", s.said("spares_not_regained"))
	found := s.find(m, id)
	if names, _ := found.shared(); !slices.Equal(names, order) {
		t.Fatalf("got %v", names)
	}
	before := found.info().BridgePID
	s.killBridges()
	s.eventually("replaced", func() bool { return found.info().BridgePID != before && found.state() == wire.StateRunning })
	s.delete(m, id)
}

// R33: what a bridge returns beside what systemd kept is closed, and the input
// that it has closed meanwhile is closed everywhere.
func TestReturnedBesideStored(t *testing.T) {
	s := newSystem(t).withSystemd()
	id := s.crashWith("running", "returning")
	before := openFDs(t)
	m := s.manager()
	s.eventually("regained", s.said("spares_regained"))
	// What systemd kept, and less than as much again of the manager's.
	s.eventually("no descriptor leaks", func() bool { return openFDs(t) < before+2*len(order)-4 })
	found := s.find(m, id)
	if err := found.closeInput(); err != nil {
		t.Error(err)
	}
	if got := s.kept(id); slices.Contains(got, "stdin") {
		t.Errorf("systemd keeps %v", got)
	}
	s.delete(m, id)
}

// R33: what came back from systemd and is not what the record says is refused,
// all of it, and dropped; a session without a bridge then is what it is.
func TestWrongStoredDescriptors(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *system, wire.SessionID){
		"another file": func(t *testing.T, s *system, id wire.SessionID) { s.putNull(t, string(id)+".index") },
		"another mode": func(t *testing.T, s *system, id wire.SessionID) {
			stored, err := s.play.Pass()
			if err != nil {
				t.Fatal(err)
			}
			for name, fd := range stored {
				if name == string(id)+".stdoutRead" {
					s.play.Put(string(id)+".stdoutSpool", fd)
				} else {
					unix.Close(fd)
				}
			}
		},
		"one is missing": func(_ *testing.T, s *system, id wire.SessionID) { s.play.Forget(string(id) + ".stderrSpool") },
		"unknown role":   func(t *testing.T, s *system, id wire.SessionID) { s.putNull(t, string(id)+".memory") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t).withSystemd()
			id := s.crash("running")
			s.killBridges()
			change(t, s, id)
			before := openFDs(t)
			m := s.manager()
			s.eventually("refused", s.said("stored_descriptors_refused"))
			s.eventually("unattached", s.hasState(m, id, wire.StateUnattached))
			s.eventually("dropped", func() bool { return len(s.play.Names()) == 0 })
			// The manager itself holds some, and not one for each descriptor.
			s.eventually("no descriptor leaks", func() bool { return openFDs(t) < before+len(order)-4 })
			s.delete(m, id)
		})
	}
}

func (s *system) putNull(t *testing.T, name string) {
	t.Helper()
	fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.play.Put(name, fd)
}

// R32, R33: what systemd kept for no session is closed and dropped.
func TestStrayDescriptors(t *testing.T) {
	s := newSystem(t).withSystemd()
	id := s.crash("running")
	other := strings.Repeat("f", 32)
	for _, name := range []string{other + ".stdin", ".", string(id)[1:] + ".stdin", other + "." + string(id) + ".stdin"} {
		s.putNull(t, name)
	}
	m := s.manager()
	s.eventually("they are dropped", func() bool { return len(s.play.Names()) == len(order) })
	if len(m.Stored) > 0 {
		t.Errorf("left: %v", m.Stored)
	}
	s.delete(m, id)
	s.eventually("systemd keeps nothing", func() bool { return len(s.play.Names()) == 0 })
}

// R33: input that a bridge has closed is closed by systemd before that is said
// to be done.
func TestSystemdDropsClosedInput(t *testing.T) {
	s := newSystem(t).withSystemd()
	m := s.manager()
	info := s.create(m, "closing")
	// The agent ends with its input, which nobody holds any more.
	s.eventually("ended", s.hasState(m, info.Session, wire.StateExited))
	if !s.said(`line="closed: done"`)() {
		t.Error("it ended before that was done")
	}
	if got := s.kept(info.Session); len(got) != len(order)-1 || slices.Contains(got, "stdin") {
		t.Errorf("systemd keeps %v", got)
	}
	s.delete(m, info.Session)
}

// R33: while systemd may still hold it, closed input is not said to be closed.
func TestClosedInputWaitsForSystemd(t *testing.T) {
	s := newSystem(t).withSystemd()
	s.play.Deafen(true)
	m := s.manager()
	info := s.create(m, "closing")
	s.eventually("refused", s.said(`line="closed: timeout"`))
	found := s.find(m, info.Session)
	s.play.Deafen(false)
	if err := found.closeInput(); err != nil {
		t.Error(err)
	}
	s.delete(m, info.Session)
}

// R33: where the store has no room for all of a session it gets nothing of it,
// and that is said; with room it is as any other.
func TestStoreIsFull(t *testing.T) {
	s := newSystem(t).withSystemd()
	s.putNull(t, "stray.1")
	m := s.newManager() // which counts it, and has not dropped it
	defer m.Close()
	var ids []wire.SessionID
	for range 3 {
		ids = append(ids, s.create(m, "").Session)
	}
	if !s.said("descriptors_unstored")() {
		t.Error("nothing is said")
	}
	s.eventually("two are kept", func() bool { return len(s.play.Names()) == 2*len(order)+1 })
	if got := s.kept(ids[2]); len(got) > 0 {
		t.Errorf("of the third %v is kept", got)
	}
	s.delete(m, ids[0])
	ids[0] = s.create(m, "").Session
	s.eventually("another is kept", func() bool { return len(s.kept(ids[0])) == len(order) })
	for _, id := range ids {
		s.delete(m, id)
	}
	if err := m.dropStored(); err != nil {
		t.Error(err)
	}
}

// R33: a broker that finds no store in use gives it what the bridge returned.
func TestStoreIsFilledLater(t *testing.T) {
	s := newSystem(t)
	id := s.crashWith("running", "returning")
	s.withSystemd()
	m := s.manager()
	s.eventually("kept", func() bool { return len(s.kept(id)) == len(order) })
	m.cancel()
	m.Close()
	s.killBridges()
	m = s.manager()
	s.eventually("runs on", func() bool { return s.hasState(m, id, wire.StateRunning)() && !s.find(m, id).bridgeMissing() })
	s.delete(m, id)
}
