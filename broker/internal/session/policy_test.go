package session

import (
	"fmt"
	"os"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// R35: what is due, and when, from what is recorded and a clock.
func TestDue(t *testing.T) {
	const hour = 3_600_000
	both := record.Policy{EndAbandoned: hour, DeleteEnded: 2 * hour}
	for name, c := range map[string]struct {
		record       record.Record
		now, started uint64
		what         wire.Due
		why          wire.Code
		in           uint64
	}{
		"no policy":                 {record: record.Record{State: wire.StateRunning}, now: 100 * hour},
		"no policy, ended":          {record: record.Record{State: wire.StateExited}, now: 100 * hour},
		"no policy, released":       {record: record.Record{State: wire.StateExited, Released: true}, now: 100 * hour},
		"fresh":                     {record.Record{State: wire.StateRunning, Policy: both, VacantSince: hour}, hour, 0, wire.DueEnd, wire.WhyAbandoned, hour},
		"a moment before":           {record.Record{State: wire.StateRunning, Policy: both, VacantSince: hour}, 2*hour - 1, 0, wire.DueEnd, wire.WhyAbandoned, 1},
		"at the moment":             {record.Record{State: wire.StateRunning, Policy: both, VacantSince: hour}, 2 * hour, 0, wire.DueEnd, wire.WhyAbandoned, 0},
		"long after":                {record.Record{State: wire.StateRunning, Policy: both, VacantSince: hour}, 200 * hour, 0, wire.DueEnd, wire.WhyAbandoned, 0},
		"unattached":                {record.Record{State: wire.StateUnattached, Policy: both}, hour, 0, wire.DueEnd, wire.WhyAbandoned, 0},
		"stalled":                   {record.Record{State: wire.StateStalled, Policy: both}, hour, 0, wire.DueEnd, wire.WhyAbandoned, 0},
		"with a writer":             {record: record.Record{State: wire.StateRunning, Policy: both, HasWriter: true}, now: 100 * hour},
		"ordered, with a writer":    {record.Record{State: wire.StateRunning, Policy: both, HasWriter: true, Abandoned: true}, 0, 0, wire.DueEnd, wire.WhyAbandoned, 0},
		"being made":                {record: record.Record{State: wire.StateCreating, Policy: both}, now: 100 * hour},
		"being deleted":             {record: record.Record{State: wire.StateDeleting, Policy: both}, now: 100 * hour},
		"the clock's file was lost": {record.Record{State: wire.StateRunning, Policy: both, VacantSince: 9 * hour}, hour, 0, wire.DueEnd, wire.WhyAbandoned, 9 * hour},
		"the broker was away":       {record.Record{State: wire.StateRunning, Policy: both}, 100 * hour, 100 * hour, wire.DueEnd, wire.WhyAbandoned, returnGrace},
		"the broker was away, short": {record.Record{State: wire.StateRunning, Policy: record.Policy{EndAbandoned: 5000}}, 100 * hour, 100 * hour,
			wire.DueEnd, wire.WhyAbandoned, 5000},
		"ended":                      {record.Record{State: wire.StateExited, Policy: both, EndedAt: 5 * hour}, 6 * hour, 0, wire.DueDelete, wire.WhyExpired, hour},
		"ended, past":                {record.Record{State: wire.StateExited, Policy: both, EndedAt: 5 * hour}, 7 * hour, 0, wire.DueDelete, wire.WhyExpired, 0},
		"ended, a writer read later": {record.Record{State: wire.StateExited, Policy: both, EndedAt: 5 * hour, VacantSince: 6 * hour}, 7 * hour, 0, wire.DueDelete, wire.WhyExpired, hour},
		"ended, a writer reads":      {record: record.Record{State: wire.StateExited, Policy: both, EndedAt: 5 * hour, HasWriter: true}, now: 100 * hour},
		"ended, never deleted":       {record: record.Record{State: wire.StateExited, Policy: record.Policy{EndAbandoned: 1}, Abandoned: true}, now: 100 * hour},
		"released":                   {record.Record{State: wire.StateExited, Policy: both, EndedAt: hour, Released: true}, hour, hour, wire.DueDelete, wire.WhyReleased, 0},
		"released, taken again":      {record: record.Record{State: wire.StateExited, Policy: both, HasWriter: true, Released: true}, now: 100 * hour},
		"released before it ended":   {record.Record{State: wire.StateRunning, Policy: both, Released: true}, 0, 0, wire.DueEnd, wire.WhyAbandoned, hour},
	} {
		what, why, in := due(&c.record, c.now, c.started)
		if what != c.what || why != c.why || in != c.in {
			t.Errorf("%s: got %q, %q in %d, want %q, %q in %d", name, what, why, in, c.what, c.why, c.in)
		}
	}
}

// tellSeats has a test say by bytes in the control log what the bridge tells
// its broker: a writer, none, none for two hours, none that needs it any more.
func (b *fakeBridge) tellSeats() {
	seats := map[byte]wire.Seat{'w': {HasWriter: true}, 'v': {}, 'o': {VacantMillis: 7_200_000}, 'r': {Released: true}}
	for {
		if err := b.giveBack(); err != nil {
			say("give back: %v", err)
		}
		order := make([]byte, 1)
		if n, err := unix.Pread(b.fds[wire.FDControlLog], order, b.heard); n != 1 {
			if err != nil {
				say("read an order: %v", err)
			}
			continue
		}
		b.heard++
		seat := seats[order[0]]
		b.seat = &seat
		say("seat %s: %v", order, b.ask(func(id uint64) wire.Message { return wire.BridgeSeat{ID: id, Seat: seat} }))
	}
}

// tell has the bridge of a session tell something of its seat.
func (s *system) tell(id wire.SessionID, order string) {
	s.t.Helper()
	f, err := os.OpenFile(s.l.Spools()+"/"+string(id)+"/control.log", os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(order); err != nil {
		s.t.Fatal(err)
	}
}

func (s *system) hasWriter(m *Manager, id wire.SessionID, want bool) func() bool {
	return func() bool {
		i, err := m.Inspect(Operator(), id)
		return err == nil && i.HasWriter == want
	}
}

// gone reports whether a session is forgotten.
func (s *system) gone(m *Manager, id wire.SessionID) func() bool {
	return func() bool {
		_, err := m.Inspect(Operator(), id)
		return wire.CodeOf(err) == wire.CodeUnknownSession
	}
}

// look has the policy enforced once more than it was.
func (s *system) look(m *Manager) {
	s.t.Helper()
	if err := m.reaping.take(m.ctx, "busy"); err != nil {
		s.t.Fatal(err)
	}
	m.enforce()
	m.reaping.release()
}

// R35 R31 R19: a session that has had no writer for as long as its profile
// allows is ended, says so, and stays readable; one that has, or had until a
// moment ago, goes on, and so does one without a limit.
func TestAbandonedIsEnded(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info, other := s.create(m, "abandoned"), s.create(m, "")
	if info.Due != wire.DueEnd || info.DueMillis == 0 || info.DueMillis > 3_600_000 || other.Due != "" {
		t.Errorf("due are %q in %d, and %q", info.Due, info.DueMillis, other.Due)
	}
	s.tell(info.Session, "w")
	s.eventually("a writer", s.hasWriter(m, info.Session, true))
	s.skip(2 * time.Hour)
	s.look(m)
	s.tell(info.Session, "v")
	s.eventually("no writer", s.hasWriter(m, info.Session, false))
	s.look(m)
	i, err := m.Inspect(Of("one"), info.Session)
	if err != nil || i.State != wire.StateRunning || i.Due != wire.DueEnd || i.DueMillis == 0 {
		t.Fatalf("its writer has just gone, and it is %+v, %v", i, err)
	}
	s.skip(time.Hour)
	s.eventually("ended", s.hasState(m, info.Session, wire.StateExited))
	if i, err = m.Inspect(Of("one"), info.Session); err != nil || i.Exit.Reason != wire.ReasonAbandoned || i.VacantMillis < 3_600_000 || i.Due != "" {
		t.Errorf("got %+v, %v", i, err)
	}
	s.eventually("the reaping is in the audit", s.audited("operation=reaped session="+string(info.Session)+" decision=event code=abandoned", 1))
	s.eventually("the end is in the audit", s.audited("operation=ended session="+string(info.Session)+" decision=event code=abandoned", 1))
	if i, err := m.Inspect(Of("one"), other.Session); err != nil || i.State != wire.StateRunning {
		t.Errorf("the other session is %+v, %v", i, err)
	}
	s.delete(m, info.Session)
	s.delete(m, other.Session)
}

// R35 R33: how long it has had no writer is not forgotten with the broker, nor
// with a bridge; and a broker that comes back ends nothing before it has heard
// the bridge, which knows whether there is a writer.
func TestAbandonedAcrossBrokers(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "abandoned")
	s.skip(40 * time.Minute)
	m.Close()
	m = s.manager()
	s.eventually("heard", s.said("spares_regained"))
	if i, err := m.Inspect(Operator(), info.Session); err != nil || i.VacantMillis < 2_400_000 {
		t.Errorf("after 40 minutes and a restart it says %+v, %v", i, err)
	}
	s.killBridges()
	s.eventually("replaced", s.said("bridge_replaced"))
	if i, err := m.Inspect(Operator(), info.Session); err != nil || i.VacantMillis < 2_400_000 {
		t.Errorf("after a bridge's death it says %+v, %v", i, err)
	}
	// A writer that comes while no broker is there is known before anything is
	// due.
	m.Close()
	s.tell(info.Session, "w")
	s.skip(3 * time.Hour)
	m = s.manager()
	s.eventually("the writer is known", s.hasWriter(m, info.Session, true))
	s.skip(3 * time.Hour)
	s.look(m)
	if i, err := m.Inspect(Operator(), info.Session); err != nil || i.State != wire.StateRunning {
		t.Fatalf("it has a writer, and is %+v, %v", i, err)
	}
	// The bridge's death takes the writer along.
	s.killBridges()
	s.eventually("no writer", s.hasWriter(m, info.Session, false))
	if i, err := m.Inspect(Operator(), info.Session); err != nil || i.VacantMillis > 3_600_000 {
		t.Errorf("the writer has just gone, and it says %+v, %v", i, err)
	}
	s.delete(m, info.Session)
}

// R35: a session whose bridge the broker can't hear is not ended: it may have a
// writer.
func TestUnheardIsNotEnded(t *testing.T) {
	s := newSystem(t)
	id := s.crashWith("running", "unheard")
	m := s.manager()
	s.skip(100 * time.Hour)
	s.eventually("asked in vain", s.said("spares_not_regained"))
	s.look(m)
	if i, err := m.Inspect(Operator(), id); err != nil || i.State != wire.StateRunning || i.Due != wire.DueEnd {
		t.Errorf("got %+v, %v", i, err)
	}
	// Dead, it has none.
	s.killBridges()
	s.eventually("unattached", s.said("session_unattached"))
	s.eventually("ended", s.hasState(m, id, wire.StateExited))
	s.delete(m, id)
}

// R35: an end that was ordered is carried out, whatever the broker dies at.
func TestAbandonedAfterCrash(t *testing.T) {
	s := newSystem(t)
	id := s.crashWith("running", "abandoned")
	m := s.manager()
	s.eventually("heard", s.said("spares_regained"))
	m.Close()
	// A broker died after its order and before anything came of it; a writer
	// came meanwhile, too late.
	store := record.Open(s.l.Records())
	all, err := store.Load()
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	all[0].Abandoned = true
	if err := store.Save(all[0]); err != nil {
		t.Fatal(err)
	}
	s.tell(id, "w")
	m = s.manager()
	s.eventually("ended", s.hasState(m, id, wire.StateExited))
	if i, err := m.Inspect(Operator(), id); err != nil || i.Exit.Reason != wire.ReasonAbandoned {
		t.Errorf("got %+v, %v", i, err)
	}
	s.delete(m, id)
}

// R31 R32: an ended session is deleted when it was kept for the configured time
// after its end and its last writer, or at once when its writer has released
// it; without a policy it is kept.
func TestEndedIsDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		orders string
		skip   time.Duration
		code   string
	}{
		"expired":  {"wv", 61 * time.Minute, "expired"},
		"released": {"wr", 0, "released"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t)
			m := s.manager()
			info, kept := s.create(m, "kept"), s.create(m, "")
			for _, i := range []wire.SessionInfo{info, kept} {
				s.killSandbox(i.Session)
				s.eventually("exited", s.hasState(m, i.Session, wire.StateExited))
			}
			s.tell(info.Session, c.orders[:1])
			s.eventually("a writer", s.hasWriter(m, info.Session, true))
			s.skip(3 * time.Hour)
			s.look(m)
			i, err := m.Inspect(Operator(), info.Session)
			if err != nil || i.State != wire.StateExited || i.Due != "" {
				t.Fatalf("a writer reads it, and it is %+v, %v", i, err)
			}
			s.tell(info.Session, c.orders[1:])
			if c.skip > 0 {
				s.eventually("no writer", s.hasWriter(m, info.Session, false))
				s.look(m)
				if i, err = m.Inspect(Operator(), info.Session); err != nil || i.Due != wire.DueDelete || i.DueMillis == 0 {
					t.Fatalf("its writer has just gone, and it is %+v, %v", i, err)
				}
				s.skip(c.skip)
			}
			s.eventually("deleted", s.gone(m, info.Session))
			s.eventually("in the audit", s.audited("operation=reaped session="+string(info.Session)+" decision=event code="+c.code, 1))
			if i, err := m.Inspect(Operator(), kept.Session); err != nil || i.State != wire.StateExited || i.Due != "" {
				t.Errorf("without a policy it is %+v, %v", i, err)
			}
			s.delete(m, kept.Session)
		})
	}
}

// R35: a lie of a bridge ends its own session at most, and what it says of a
// session that runs deletes nothing.
func TestLiesOfSeats(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	liar, other, running := s.create(m, "abandoned"), s.create(m, "abandoned"), s.create(m, "kept")
	s.tell(liar.Session, "o")
	s.tell(running.Session, "r")
	s.eventually("ended", s.hasState(m, liar.Session, wire.StateExited))
	s.eventually("heard", s.said(`line="seat r: done"`))
	s.look(m)
	for _, i := range []wire.SessionInfo{other, running} {
		if now, err := m.Inspect(Operator(), i.Session); err != nil || now.State != wire.StateRunning {
			t.Errorf("a session is %+v, %v", now, err)
		}
	}
	for _, i := range []wire.SessionInfo{liar, other, running} {
		s.delete(m, i.Session)
	}
}

// R34: the spools of a deployment's sessions are bounded together, ended ones
// included, and another deployment's do not count.
func TestSpoolTotal(t *testing.T) {
	s := newSystem(t)
	s.config.Deployments["one"].SpoolTotal = 64 << 20
	m := s.manager()
	first, second := s.create(m, ""), s.create(m, "")
	s.killSandbox(second.Session)
	s.eventually("exited", s.hasState(m, second.Session, wire.StateExited))
	create := wire.Create{ID: 1, Workspace: "project"}
	_, err := m.Create(t.Context(), s.config.Deployments["one"], create)
	if wire.CodeOf(err) != wire.CodeDeploymentSpoolFull {
		t.Errorf("a third session: %v", err)
	}
	elsewhere, err := m.Create(t.Context(), s.config.Deployments["two"], create)
	if err != nil {
		t.Fatal(err)
	}
	s.delete(m, second.Session)
	third := s.create(m, "")
	for _, i := range []wire.SessionInfo{first, elsewhere, third} {
		s.delete(m, i.Session)
	}
}

// What each does is done for all, a few at a time, and every error is told.
func TestEach(t *testing.T) {
	all := make([]*session, 100)
	running, most, calls := make(chan struct{}, len(all)), 0, make(chan int, len(all))
	err := each(all, func(*session) error {
		running <- struct{}{}
		calls <- len(running)
		time.Sleep(time.Millisecond)
		<-running
		return fmt.Errorf("no")
	})
	for range all {
		most = max(most, <-calls)
	}
	if most > atOnce || most < 2 {
		t.Errorf("%d at once", most)
	}
	if n := len(err.(interface{ Unwrap() []error }).Unwrap()); n == 0 {
		t.Errorf("%d errors", n)
	}
	if each(nil, nil) != nil {
		t.Error("none failed")
	}
}
