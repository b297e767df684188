package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// R33: a restarted broker takes its spares back from a bridge that lives, and
// replaces the bridge from them, again and again.
func TestSparesAreTakenBack(t *testing.T) {
	s := newSystem(t)
	id := s.crashWith("running", "returning")
	m := s.manager()
	s.eventually("regained", s.said("spares_regained"))
	find := func() *session {
		found, err := m.find(Operator(), id)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	names, fds := find().shared()
	if want := slices.Sorted(slices.Values(order)); !slices.Equal(slices.Sorted(slices.Values(names)), want) {
		t.Fatalf("got %v, want %v", names, want)
	}
	for i, fd := range fds {
		if flags, err := identify(fd); err != nil || flags != find().rec.Custody.Descriptors[names[i]] {
			t.Errorf("%s is %+v, %v", names[i], flags, err)
		}
	}
	for range 3 {
		before := find().info().BridgePID
		s.killBridges()
		s.eventually("replaced", func() bool { return find().info().BridgePID != before && find().state() == wire.StateRunning })
	}
	s.delete(m, id)
}

// R33: what a bridge returns is accepted only if it is what the record says.
func TestLyingBridgeReturnsNothing(t *testing.T) {
	s := newSystem(t)
	id := s.crashWith("running", "lying")
	before := openFDs(t)
	m := s.manager()
	s.eventually("refused", s.said("spares_not_regained"))
	found, err := m.find(Operator(), id)
	if err != nil {
		t.Fatal(err)
	}
	if names, _ := found.shared(); len(names) > 0 {
		t.Errorf("the broker took %v", names)
	}
	// The manager itself holds some; fifteen for each try would be more.
	s.eventually("no descriptor leaks", func() bool { return openFDs(t) < before+12 })
	if info := found.info(); info.State != wire.StateRunning {
		t.Errorf("the session is %s", info.State)
	}
	s.delete(m, id)
}

// R33: a process whose pipes are lost is ended where its profile says so.
func TestUnattachedIsTerminated(t *testing.T) {
	for name, early := range map[string]bool{"while no broker is there": true, "later": false} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t)
			id := s.crashWith("running", "ending")
			// Its input ends with the bridge, which must not be what ends it.
			sandbox := processesOf(id)[0]
			if err := unix.Kill(sandbox, unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			if early {
				s.killBridges()
			}
			m := s.manager()
			if !early {
				s.killBridges()
			}
			s.eventually("ordered to end", func() bool {
				found, err := m.find(Operator(), id)
				if err != nil {
					return false
				}
				found.mu.Lock()
				defer found.mu.Unlock()
				return found.rec.Terminated
			})
			if err := unix.Kill(sandbox, unix.SIGCONT); err != nil {
				t.Error(err)
			}
			s.eventually("ended", s.hasState(m, id, wire.StateExited))
			if info, err := m.Inspect(Of("one"), id); err != nil || info.Exit.Reason != wire.ReasonTerminated {
				t.Errorf("got %+v, %v", info, err)
			}
			s.eventually("its output is readable", s.said("output_readable"))
			if err := m.Delete(context.Background(), Operator(), id); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// R31: what was spooled stays readable when the session had ended before its
// bridge died with all that it had.
func TestEndedIsReadable(t *testing.T) {
	s := newSystem(t)
	id := s.crash("running")
	s.killSandbox(id)
	m := s.manager()
	s.eventually("exited", s.hasState(m, id, wire.StateExited))
	s.killBridges()
	s.eventually("its output is readable", s.said("output_readable"))
	s.delete(m, id)
}

// giveBack gives a broker that asks what it needs, if there is one.
func (b *fakeBridge) giveBack() error {
	fd, _, err := unix.Accept4(b.fds[wire.FDCustody], unix.SOCK_CLOEXEC)
	if errors.Is(err, unix.EAGAIN) {
		time.Sleep(5 * time.Millisecond)
		return nil
	}
	if err != nil {
		return err
	}
	conn, err := fdpass.Adopt(fd)
	if err != nil {
		return err
	}
	p, _, err := fdpass.Receive(conn, wire.MaxCustodyMessage)
	if err != nil {
		return err
	}
	if m, err := wire.Decode(wire.ToBridge, p); err != nil || m.Kind() != "resume" {
		return fmt.Errorf("got %v, %v", m, err)
	}
	fds := make([]int, len(b.c.Descriptors))
	for i, name := range b.c.Descriptors {
		if fds[i] = b.fds[name]; name == wire.FDIndex && b.c.MaxInput == behaveLying {
			fds[i] = b.fds[wire.FDStdoutRead]
		}
	}
	if p, err = wire.Encode(wire.Resumed{Descriptors: b.c.Descriptors, Seat: b.seat}); err != nil {
		return err
	}
	b.conn = conn
	return fdpass.Send(conn, p, fds...)
}
