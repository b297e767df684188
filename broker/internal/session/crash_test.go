package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// The environment of a child that plays a broker and dies at a given point.
const (
	crashPrefix = "SESSION_TEST_PREFIX"
	crashUID    = "SESSION_TEST_UID"
	crashAt     = "SESSION_TEST_CRASH"
	crashWith   = "SESSION_TEST_PROFILE"
	crashStatus = 42
	// crashCollecting in the place of a profile makes no session, and collects
	// what bears the id of none.
	crashCollecting = "(collecting)"
)

// crashChild creates a session, deletes it unless it was told to stop before,
// and dies where it was told to: "do|undo STEP before|after", "create middle",
// or "running".
func crashChild() {
	uid, err := strconv.ParseUint(os.Getenv(crashUID), 10, 32)
	if err != nil {
		panic(err)
	}
	s := openSystem(nil, os.Getenv(crashPrefix), uint32(uid))
	at := os.Getenv(crashAt)
	die := func(here string) {
		if here == at {
			os.Exit(crashStatus)
		}
	}
	for i := range steps {
		st := steps[i]
		steps[i].do = func(s *session, ctx context.Context, c *creation) error {
			die("do " + st.name + " before")
			err := st.do(s, ctx, c)
			die("do " + st.name + " after")
			return err
		}
		steps[i].undo = func(s *session, ctx context.Context) error {
			die("undo " + st.name + " before")
			err := st.undo(s, ctx)
			die("undo " + st.name + " after")
			return err
		}
	}
	s.runtime.created = func() { die("create middle") }
	m := s.newManager()
	if err := m.Recover(context.Background()); err != nil {
		panic(err)
	}
	if os.Getenv(crashWith) == crashCollecting {
		if err := s.litter(); err != nil {
			panic(err)
		}
		m.Collect(context.Background(), false, "")
		os.Exit(0)
	}
	info, err := m.Create(context.Background(), s.config.Deployments["one"], wire.Create{ID: 1, Workspace: "project", Profile: os.Getenv(crashWith)})
	if err != nil {
		panic(err)
	}
	fmt.Println(info.Session)
	die("running")
	if err := m.Delete(context.Background(), Of("one"), info.Session); err != nil {
		panic(err)
	}
	os.Exit(0)
}

// crash runs a broker that dies at the point, and returns the id of its
// session if it got that far.
func (s *system) crash(at string) wire.SessionID {
	s.t.Helper()
	return s.crashWith(at, "")
}

// crashWith is crash with a session of this profile.
func (s *system) crashWith(at, profile string) wire.SessionID {
	s.t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), crashPrefix+"="+s.l.Run[:len(s.l.Run)-len("/run")], fmt.Sprintf("%s=%d", crashUID, s.config.Bridge.FirstUID), crashAt+"="+at, crashWith+"="+profile)
	cmd.Stderr = s.log
	out, err := cmd.Output()
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != crashStatus {
		s.t.Fatalf("%s: the child did not die there: %v\n%s", at, err, s.log)
	}
	return wire.SessionID(strings.TrimSpace(string(out)))
}

// R32, R33: whichever step of a creation or deletion a broker dies at, the next
// one leaves nothing of the session: no process, mount, socket, cgroup, file.
func TestCrashAtEachStep(t *testing.T) {
	points := []string{"create middle"}
	for _, st := range steps {
		for _, what := range []string{"do", "undo"} {
			points = append(points, what+" "+st.name+" before", what+" "+st.name+" after")
		}
	}
	for _, at := range points {
		if at == "do start after" {
			continue // the session runs then: TestCrashWhileRunning
		}
		t.Run(at, func(t *testing.T) {
			s := newSystem(t)
			s.crash(at)
			m := s.manager()
			// A bridge that had no descriptors yet ends by itself.
			s.eventually("nothing left", func() bool { return len(s.leftovers()) == 0 })
			if page, _ := m.List(Operator(), ""); len(page) != 0 {
				t.Errorf("the broker still knows %+v", page)
			}
		})
	}
}

// R33: a session outlives its broker, and the next one has it under control;
// what it can't do is said.
func TestCrashWhileRunning(t *testing.T) {
	s := newSystem(t)
	id := s.crash("running")
	m := s.manager()
	info, err := m.Inspect(Of("one"), id)
	if err != nil || info.State != wire.StateRunning {
		t.Fatalf("got %+v, %v, want a running session", info, err)
	}
	info, err = m.Terminate(context.Background(), Of("one"), id, 10e9)
	if err != nil || info.State != wire.StateExited || info.Exit.Reason != wire.ReasonTerminated {
		t.Errorf("got %+v, %v", info, err)
	}
	s.delete(m, id)
}

// R33: without its bridge, and without a broker that has its descriptors, a
// session is unattached, and nobody claims otherwise.
func TestCrashThenBridgeDies(t *testing.T) {
	for name, early := range map[string]bool{"while no broker is there": true, "later": false} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t)
			id := s.crash("running")
			if early {
				s.killBridges()
			}
			m := s.manager()
			if !early {
				s.killBridges()
			}
			s.eventually("unattached", s.hasState(m, id, wire.StateUnattached))
			s.delete(m, id)
		})
	}
}

// R31: a sandbox that ended while no broker was there has ended for a reason
// that nobody saw.
func TestCrashThenSandboxDies(t *testing.T) {
	s := newSystem(t)
	id := s.crash("running")
	s.killSandbox(id)
	m := s.manager()
	info, err := m.Inspect(Of("one"), id)
	if err != nil || info.State != wire.StateExited || info.Exit.Reason != wire.ReasonUnknown {
		t.Errorf("got %+v, %v", info, err)
	}
	s.delete(m, id)
}

// R33: after a reboot nothing lives, whatever has got the pids meanwhile.
func TestReboot(t *testing.T) {
	s := newSystem(t)
	id := s.crash("running")
	m := s.newManager()
	m.Boot = "another"
	defer m.Close()
	// What lives here plays the processes that got the same pids.
	if err := m.Recover(context.Background()); err != nil {
		t.Fatal(err)
	}
	info, err := m.Inspect(Of("one"), id)
	if err != nil || info.State != wire.StateExited || info.Exit.Reason != wire.ReasonHostRestarted {
		t.Errorf("got %+v, %v", info, err)
	}
	// The output is readable: a bridge is there, and takes turns with others.
	readable := func() bool {
		i, err := m.Inspect(Of("one"), id)
		return err == nil && i.BridgePID != 0 && i.BridgePID != info.BridgePID
	}
	s.eventually("readable", readable)
	// A bridge that nobody told of the end of its input is not started without.
	found, err := m.find(Operator(), id)
	if err != nil {
		t.Fatal(err)
	}
	if names, _ := found.shared(); !slices.Equal(names, order) {
		t.Errorf("the bridge got %v", names)
	}
	s.delete(m, id)
	if left := s.bridges(); len(left) != 1 {
		t.Errorf("a process of another boot was killed: %v", left)
	}
	s.killBridges()
}

// R32: traces without a record are removed, a bridge that lives among them.
func TestOrphans(t *testing.T) {
	s := newSystem(t)
	id := s.crash("running")
	if err := os.Remove(s.l.Records() + "/" + string(id) + ".json"); err != nil {
		t.Fatal(err)
	}
	s.manager()
	s.checkNothingLeft()
}

// R32, R33: what can't be removed of one session keeps no broker from starting:
// not for ever, and not by its code, which is the session's and not the
// broker's.
func TestRecoveryGoesOn(t *testing.T) {
	defer func(d time.Duration) { undoTimeout = d }(undoTimeout)
	undoTimeout = time.Second
	for name, block := range map[string]func(*fakeRuntime){
		"stuck":  func(f *fakeRuntime) { f.stuck = true },
		"failed": func(f *fakeRuntime) { f.failDelete = runtimeFailed("delete", errors.New("no")) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t)
			id := s.crash("running")
			s.killSandbox(id)
			block(s.runtime)
			m := s.newManager()
			defer m.Close()
			done := make(chan error, 1)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go func() { done <- m.Recover(ctx) }()
			select {
			case err := <-done:
				if wire.CodeOf(err) != wire.CodeInternal {
					t.Errorf("got %v", err)
				}
			case <-time.After(60 * time.Second):
				t.Error("the broker does not start")
				cancel()
				<-done
			}
			s.runtime.stuck, s.runtime.failDelete = false, nil
			s.delete(m, id)
		})
	}
}
