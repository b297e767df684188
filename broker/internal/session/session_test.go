package session

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

func (s *system) bridges() []int {
	return findProcesses(func(words []string, pid int) bool {
		st, err := os.Stat("/proc/" + strconv.Itoa(pid))
		return words[0] == bridgeName && err == nil && s.config.Bridge.Holds(uidOf(st))
	})
}

func (s *system) killBridges() {
	s.t.Helper()
	for _, pid := range s.bridges() {
		s.kill(pid)
	}
}

func (s *system) killSandbox(id wire.SessionID) {
	s.t.Helper()
	for _, pid := range processesOf(id) {
		s.kill(pid)
	}
}

// kill kills a process and waits for its death.
func (s *system) kill(pid int) {
	s.t.Helper()
	p, err := process.Open(pid)
	if errors.Is(err, process.ErrGone) {
		return
	}
	if err != nil {
		s.t.Fatal(err)
	}
	defer p.Close()
	if err := p.Kill(context.Background()); err != nil {
		s.t.Fatal(err)
	}
}

// R30, R31: a session is made, seen, signalled, ends with its reason and code,
// and is deleted without a trace.
func TestLife(t *testing.T) {
	s := newSystem(t)
	before := openFDs(t)
	m := s.manager()
	info := s.create(m, "")
	if info.State != wire.StateRunning || info.Profile != "well" || info.Socket != "s/"+string(info.Session)+".sock" {
		t.Errorf("got %+v", info)
	}
	for _, p := range []struct{ pid, start uint64 }{{info.SandboxPID, info.SandboxStart}, {info.BridgePID, info.BridgeStart}} {
		found, err := process.Find(process.ID{PID: int(p.pid), Start: p.start})
		if err != nil {
			t.Fatalf("the process that the session names: %v", err)
		}
		found.Close()
	}
	if err := m.Signal(context.Background(), Of("one"), info.Session, "TERM"); err != nil {
		t.Fatal(err)
	}
	s.eventually("exited", s.hasState(m, info.Session, wire.StateExited))
	s.eventually("the reason is told", s.said(`line="reason: terminated"`))
	s.eventually("the exit code is told", func() bool {
		i, _ := m.Inspect(Of("one"), info.Session)
		return i.Exit.Code == 143 && i.Exit.Signal == "TERM" && i.Exit.Reason == wire.ReasonTerminated
	})
	if err := m.Signal(context.Background(), Of("one"), info.Session, "TERM"); wire.CodeOf(err) != wire.CodeSessionNotRunning {
		t.Errorf("signal to the dead: %v", err)
	}
	if i, err := m.Terminate(context.Background(), Of("one"), info.Session, time.Second); err != nil || i.State != wire.StateExited {
		t.Errorf("terminate of the dead: %+v, %v", i, err)
	}
	if pin := s.l.Session("one", false, info.Session).Pin; slices.Contains(s.leftovers(), pin) {
		t.Errorf("the pin of an ended session is still there: %s", pin)
	}
	s.delete(m, info.Session)
	s.delete(m, info.Session)
	s.checkNothingLeft()
	m.Close()
	if after := openFDs(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// Session descriptors stay non-blocking over every hand-over, and the spares
// hold no opposite end: when the agent is gone, its pipes are at their end.
func TestDescriptors(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "")
	defer s.delete(m, info.Session)
	ses := m.sessions[info.Session]
	check := func() {
		t.Helper()
		names, fds := ses.shared()
		if len(names) != len(order) {
			t.Errorf("there are %v", names)
		}
		for i, name := range names {
			flags, err := unix.FcntlInt(uintptr(fds[i]), unix.F_GETFL, 0)
			pipe := slices.Contains(order[:5], name)
			if err != nil || pipe && flags&unix.O_NONBLOCK == 0 || flags&unix.O_APPEND != 0 {
				t.Errorf("%s has the flags %#x, %v", name, flags, err)
			}
			if closing, err := unix.FcntlInt(uintptr(fds[i]), unix.F_GETFD, 0); err != nil || closing&unix.FD_CLOEXEC == 0 {
				t.Errorf("%s is not close-on-exec", name)
			}
		}
	}
	check()
	s.kill(int(info.BridgePID))
	s.eventually("another bridge", s.said("bridge_replaced"))
	check()
	s.killBridges() // the one that reads
	s.killSandbox(info.Session)
	fds := map[wire.DescriptorName]int{}
	names, all := ses.shared()
	for i, name := range names {
		fds[name] = all[i]
	}
	for _, name := range []wire.DescriptorName{wire.FDStdout, wire.FDStderr} {
		if n, err := unix.Read(fds[name], make([]byte, 1)); n != 0 || err != nil {
			t.Errorf("%s: read %d, %v, want the end: somebody holds the other end", name, n, err)
		}
	}
}

// R33: a bridge that dies is replaced on the same descriptors, by the same
// user, and the session goes on.
func TestBridgeIsReplaced(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "")
	replaced := func(n int) func() bool {
		return func() bool { return strings.Count(s.log.String(), "bridge_replaced") == n }
	}
	for i := range 3 {
		before, _ := m.Inspect(Of("one"), info.Session)
		s.kill(int(before.BridgePID))
		s.eventually("another bridge", replaced(i+1))
		now, err := m.Inspect(Of("one"), info.Session)
		if err != nil || now.BridgePID == before.BridgePID || now.SandboxPID != before.SandboxPID || now.State != wire.StateRunning {
			t.Errorf("got %+v, %v after %+v", now, err, before)
		}
	}
	if n := strings.Count(s.log.String(), "has [stdin stdout stderr exit listener"); n != 4 {
		t.Errorf("%d bridges got all descriptors, want 4", n)
	}
	s.eventually("one bridge", func() bool { return len(s.bridges()) == 1 })
	// After the agent's end clients still read: the bridge is still replaced.
	s.killSandbox(info.Session)
	s.eventually("exited", s.hasState(m, info.Session, wire.StateExited))
	s.killBridges()
	s.eventually("another bridge", replaced(4))
	s.delete(m, info.Session)
}

// Whatever a bridge does, it harms its own session alone, and the broker goes
// on with flat descriptors.
func TestBridgeMisbehaves(t *testing.T) {
	for profile, c := range map[string]struct {
		state wire.State
		said  string
	}{
		"garbage":    {wire.StateStalled, "bridge_misbehaved"},
		"oversized":  {wire.StateStalled, "bridge_misbehaved"},
		"dying":      {wire.StateStalled, "bridge_dies_often"},
		"deaf":       {wire.StateStalled, "bridge_misbehaved"},
		"foreign":    {wire.StateStalled, "unknown_message"},
		"early":      {wire.StateRunning, `line="early: invalid_argument"`},
		"smuggling":  {wire.StateRunning, "line=smuggled"},
		"closing":    {wire.StateExited, `line="closed: done"`},
		"signalling": {wire.StateExited, `line="signal: done"`},
	} {
		t.Run(profile, func(t *testing.T) {
			s := newSystem(t)
			m := s.manager()
			other := s.create(m, "")
			before := openFDs(t)
			info := s.create(m, profile)
			s.eventually(string(c.state), s.hasState(m, info.Session, c.state))
			s.eventually(c.said, s.said(c.said))
			if i, err := m.Inspect(Of("one"), other.Session); err != nil || i.State != wire.StateRunning || i.BridgePID != other.BridgePID {
				t.Errorf("the other session is %+v, %v", i, err)
			}
			s.delete(m, info.Session)
			if after := openFDs(t); after != before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
			s.delete(m, other.Session)
		})
	}
}

// A failed creation leaves nothing, at whichever step, and says why in a code
// and without a host path.
func TestCreateFails(t *testing.T) {
	for name, c := range map[string]struct {
		request wire.Create
		prepare func(*system)
		code    wire.Code
	}{
		"workspace":   {wire.Create{Workspace: "nothing"}, nil, wire.CodeUnknownWorkspace},
		"profile":     {wire.Create{Workspace: "project", Profile: "nothing"}, nil, wire.CodeUnknownProfile},
		"model":       {wire.Create{Workspace: "project", Model: "a/b"}, nil, wire.CodeInvalidArgument},
		"root":        {wire.Create{Workspace: "missing"}, nil, wire.CodePathMissing},
		"container":   {wire.Create{Workspace: "project"}, func(s *system) { s.runtime.failCreate = errors.New("no") }, wire.CodeRuntimeFailed},
		"start":       {wire.Create{Workspace: "project"}, func(s *system) { s.runtime.failStart = errors.New("no") }, wire.CodeRuntimeFailed},
		"bridge":      {wire.Create{Workspace: "project", Profile: "crashing"}, nil, wire.CodeBridgeFailed},
		"bridge says": {wire.Create{Workspace: "project", Profile: "failing"}, nil, wire.CodeBridgeFailed},
		"spool":       {wire.Create{Workspace: "project"}, func(s *system) { os.RemoveAll(s.l.Spools()) }, wire.CodeInternal},
		"record":      {wire.Create{Workspace: "project"}, func(s *system) { os.RemoveAll(s.l.Records()) }, wire.CodeInternal},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t)
			m := s.manager()
			if c.prepare != nil {
				c.prepare(s)
			}
			before := openFDs(t)
			c.request.ID = 1
			_, err := m.Create(context.Background(), s.config.Deployments["one"], c.request)
			if wire.CodeOf(err) != c.code {
				t.Fatalf("got %v, want %s", err, c.code)
			}
			if e := AsError(err); strings.Contains(e.Message+e.Advice, "/ses-") || e.Advice == "" {
				t.Errorf("the client is told %q, %q", e.Message, e.Advice)
			}
			if name != "record" {
				s.checkNothingLeft()
			}
			if after := openFDs(t); after != before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
		})
	}
}

// R12: a session of another deployment is as none, in every request.
func TestScopes(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "")
	never := wire.SessionID(strings.Repeat("0", 32))
	ctx := context.Background()
	for name, do := range map[string]func(id wire.SessionID) error{
		"inspect":   func(id wire.SessionID) error { _, err := m.Inspect(Of("two"), id); return err },
		"signal":    func(id wire.SessionID) error { return m.Signal(ctx, Of("two"), id, "KILL") },
		"terminate": func(id wire.SessionID) error { _, err := m.Terminate(ctx, Of("two"), id, 0); return err },
		"delete":    func(id wire.SessionID) error { return m.Delete(ctx, Of("two"), id) },
	} {
		theirs, none := do(info.Session), do(never)
		if (theirs == nil) != (none == nil) || theirs != nil && theirs.Error() != none.Error() {
			t.Errorf("%s: got %v for another's session and %v for none", name, theirs, none)
		}
	}
	if page, _ := m.List(Of("two"), ""); len(page) != 0 {
		t.Errorf("two lists %+v", page)
	}
	if i, err := m.Inspect(Of("one"), info.Session); err != nil || i.State != wire.StateRunning {
		t.Errorf("got %+v, %v", i, err)
	}
	s.delete(m, info.Session)
}

// R34: the limit of sessions holds, and a slow creation holds nobody up.
func TestLimitAndSlowCreate(t *testing.T) {
	s := newSystem(t)
	s.runtime.hold = make(chan struct{})
	m := s.manager()
	ctx, cancel := context.WithCancel(context.Background())
	results := make(chan error, 3)
	for range 3 {
		go func() {
			_, err := m.Create(ctx, s.config.Deployments["one"], wire.Create{ID: 1, Workspace: "project"})
			results <- err
		}()
	}
	s.eventually("three are being made", func() bool {
		page, _ := m.List(Of("one"), "")
		return len(page) == 3
	})
	if _, err := m.Create(ctx, s.config.Deployments["one"], wire.Create{ID: 1, Workspace: "project"}); wire.CodeOf(err) != wire.CodeTooManySessions {
		t.Errorf("got %v", err)
	}
	page, _ := m.List(Of("one"), "")
	if i, err := m.Inspect(Of("one"), page[0].Session); err != nil || i.State != wire.StateCreating {
		t.Errorf("got %+v, %v", i, err)
	}
	// A deletion ends a creation, which is then reported as given up.
	s.delete(m, page[0].Session)
	if err := <-results; wire.CodeOf(err) != wire.CodeTimeout {
		t.Errorf("the creation that was deleted: %v", err)
	}
	// So does the end of the client.
	cancel()
	for range 2 {
		if err := <-results; wire.CodeOf(err) != wire.CodeTimeout {
			t.Errorf("the creation whose client went: %v", err)
		}
	}
	s.checkNothingLeft()
}

// The pages of a list hold every session once, in order.
func TestListPages(t *testing.T) {
	s := newSystem(t)
	m := s.newManager()
	defer m.Close()
	d := *s.config.Deployments["one"]
	d.MaxSessions = 1000
	s.config.Bridge.UIDCount = 1000
	for range 150 {
		ses, err := m.admit(&d, wire.Create{Workspace: "project", Profile: "well"}, d.Profiles["well"])
		if err != nil {
			t.Fatal(err)
		}
		m.work.Done()
		ses.release()
	}
	var all []wire.SessionID
	after := wire.SessionID("")
	for {
		page, more := m.List(Of("one"), after)
		for _, i := range page {
			all = append(all, i.Session)
		}
		if !more {
			break
		}
		after = page[len(page)-1].Session
	}
	if len(all) != 150 || !slices.IsSorted(all) || len(slices.Compact(all)) != 150 {
		t.Errorf("got %d sessions", len(all))
	}
	clear(m.sessions)
}
