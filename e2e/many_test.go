package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// smallProfile is a program that gives back what it gets and needs little.
const smallProfile = `
[profiles.echo]
kind = "program"
framing = "lines"
command = ["/bin/cat"]
memory = "192MiB"
pids = 96
tmp = "1MiB"
state = "16MiB"
spool = "17MiB"
max_record = "1MiB"
max_input = "1MiB"
`

// manySessions is how many there are when the environment says nothing.
const manySessions = 8

// atOnce is how many requests of many are under way at a time.
const atOnce = 6

// dialogue is a session whose agent is asked all the time, and checked byte by
// byte.
type dialogue struct {
	info   wire.SessionInfo
	rounds atomic.Int64
}

// run asks and compares, after a pause each time, until stop is closed.
func (d *dialogue) run(ctx context.Context, b *client.Broker, pause time.Duration, stop <-chan struct{}) error {
	s, err := client.DialSession(ctx, b.SessionSocket(d.info))
	if err != nil {
		return err
	}
	defer s.Close()
	if _, err := s.Attach(ctx, client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromOldest}); err != nil {
		return err
	}
	for i := 1; ; i++ {
		select {
		case <-stop:
			return nil
		case <-time.After(pause):
		}
		line := fmt.Sprintf("%s %d\n", d.info.Session, i)
		if _, err := s.Input(ctx, strconv.Itoa(i), []byte(line)); err != nil {
			return err
		}
		r, err := s.Next(ctx)
		if err != nil {
			return err
		}
		if string(r.Data) != line || r.Sequence != uint64(i) {
			return fmt.Errorf("record %d is %q, want %d, %q", r.Sequence, r.Data, i, line)
		}
		if err := s.Ack(ctx, r.Sequence); err != nil {
			return err
		}
		d.rounds.Add(1)
	}
}

// inParallel does something for each of n, a few at a time.
func inParallel(t *testing.T, n int, do func(i int) error) {
	t.Helper()
	var group sync.WaitGroup
	next := make(chan int)
	for range atOnce {
		group.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					t.Errorf("session %d: %v", i, err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	group.Wait()
}

// R30 R32 R33: many sessions at once go on with their work while the broker is
// killed and started again; all of them are running then, and deletable, and
// nothing is left of any.
func TestManySessions(t *testing.T) {
	rootonly.Test(t)
	n := manySessions
	if more, err := strconv.Atoi(os.Getenv("PASEO_SANDBOX_SESSIONS")); err == nil {
		n = more
	}
	s := startSmallSystem(t, harness.Options{Profiles: smallProfile, MaxSessions: n})
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(3+n/5)*time.Minute)
	defer cancel()
	b, err := client.DialBroker(ctx, s.BrokerSocket())
	must(t, err)
	defer b.Close()
	began := time.Now()
	lap := func(what string) {
		t.Logf("%d sessions: %s after %v", n, what, time.Since(began).Round(time.Millisecond))
		began = time.Now()
	}
	all := make([]dialogue, n)
	inParallel(t, n, func(i int) (err error) {
		all[i].info, err = b.Create(ctx, client.CreateOptions{Workspace: "project", Profile: "echo"})
		return err
	})
	lap("made")
	if t.Failed() {
		return
	}
	stop := make(chan struct{})
	var group sync.WaitGroup
	for i := range all {
		group.Go(func() {
			if err := all[i].run(ctx, b, time.Duration(n)*10*time.Millisecond, stop); err != nil {
				t.Errorf("session %d: %v", i, err)
				cancel()
			}
		})
	}
	goOn := func(when string) {
		t.Helper()
		for i := range all {
			want := all[i].rounds.Load() + 3
			poll(ctx, t, fmt.Sprintf("session %d goes on %s", i, when), func() bool { return all[i].rounds.Load() >= want })
		}
		lap("went on " + when)
	}
	// A failure must not leave the streams behind.
	defer group.Wait()
	defer cancel()
	goOn("at first")
	must(t, s.StopBroker(syscall.SIGKILL))
	goOn("without a broker")
	must(t, s.StartBroker(ctx))
	lap("a new broker listens")
	poll(ctx, t, "the spares are back", func() bool { return regained(t, s) >= n })
	lap("it has the spares")
	goOn("with a new broker")
	close(stop)
	group.Wait()
	checkMany(ctx, t, s, all)
	lap("ended")
}

// checkMany wants that all are as they were, and deletes them.
func checkMany(ctx context.Context, t *testing.T, s *harness.System, all []dialogue) {
	t.Helper()
	b, err := client.DialBroker(ctx, s.BrokerSocket())
	must(t, err)
	defer b.Close()
	listed, err := b.List(ctx)
	if err != nil || len(listed) != len(all) {
		t.Errorf("%d sessions are listed, %v", len(listed), err)
	}
	now := make(map[wire.SessionID]wire.SessionInfo)
	for _, info := range listed {
		now[info.Session] = info
	}
	for i := range all {
		was := all[i].info
		if is := now[was.Session]; is.State != wire.StateRunning || is.SandboxPID != was.SandboxPID || is.BridgePID != was.BridgePID {
			t.Errorf("session %d was %+v, is %+v", i, was, is)
		}
	}
	inParallel(t, len(all), func(i int) error { return b.Delete(ctx, all[i].info.Session) })
	checkNothing(t, s)
}
