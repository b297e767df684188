package storm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"syscall"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
)

// Kind is what strikes.
type Kind string

// Kinds. Those that stop a process let it go on a moment later.
const (
	KillDaemon Kind = "daemon"
	KillBridge Kind = "bridge"
	KillBroker Kind = "broker"
	KillReaper Kind = "reaper"
	StopDaemon Kind = "daemon stopped"
	StopBridge Kind = "bridge stopped"
	StopBroker Kind = "broker stopped"
	// HangBridge stops a bridge until the broker replaces it.
	HangBridge Kind = "bridge hung"
	// FreezeBroker stops the broker for longer than a bridge may say nothing:
	// none may be taken for hung.
	FreezeBroker Kind = "broker frozen"
	// KillBoth kills the broker and every bridge at once.
	KillBoth Kind = "broker and bridge"
)

// stopped bounds how long a process is stopped.
const stopped = 300 * time.Millisecond

// Storm is a system under attack. It is used by one goroutine.
type Storm struct {
	system   *harness.System
	rng      *rand.Rand
	progress *progress
	sessions []*session
	// brokerLog is where the log of the present broker begins; regaining says
	// that it may not have all spares yet.
	brokerLog int64
	regaining bool
	// replacing are sessions whose bridge may not be replaced yet, with the
	// place in the log where that began.
	replacing map[*session]int64
}

// New makes a storm over a running system. Counts are printed to out every ten
// seconds; nil prints none.
func New(system *harness.System, out io.Writer) *Storm {
	return &Storm{
		system: system, rng: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1)),
		progress: newProgress(out), replacing: make(map[*session]int64),
	}
}

// Begin starts sessions with a daemon each.
func (s *Storm) Begin(ctx context.Context, n int) error {
	for range n {
		session, err := start(ctx, s.system)
		if err != nil {
			return err
		}
		s.sessions = append(s.sessions, session)
		s.progress.counts.Sessions++
	}
	return nil
}

// Strike does the deed to one session at a random instant. It may return before
// what it killed is replaced; the next one waits where two deaths at once would
// be more than is promised.
func (s *Storm) Strike(ctx context.Context, kind Kind) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(s.moment(60 * time.Millisecond)):
	}
	target := s.sessions[s.rng.IntN(len(s.sessions))]
	deeds := map[Kind]func(context.Context, *session) error{
		KillDaemon: s.killDaemon, KillBridge: s.killBridge, KillBroker: s.killBroker, KillReaper: s.killReaper,
		StopDaemon: s.stopDaemon, StopBridge: s.stopBridge, StopBroker: s.stopBroker, HangBridge: s.hangBridge, FreezeBroker: s.freezeBroker,
	}
	err := deeds[kind](ctx, target)
	for _, session := range s.sessions {
		err = errors.Join(err, session.fault())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	s.progress.counts.Deeds[kind]++
	return s.report()
}

// End lets all streams move once more, ends the sessions, compares every byte
// and removes them.
func (s *Storm) End(ctx context.Context) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	for _, session := range s.sessions {
		if err := session.moves(ctx); err != nil {
			return err
		}
		if err := errors.Join(session.stop(ctx), session.verify()); err != nil {
			return err
		}
	}
	return s.remove(ctx)
}

func (s *Storm) remove(ctx context.Context) error {
	for _, session := range s.sessions {
		if err := session.remove(ctx); err != nil {
			return err
		}
		l, err := session.ledger()
		if err != nil {
			return err
		}
		s.progress.counts.add(l)
	}
	s.sessions = nil
	return nil
}

// Abort kills the daemons, whatever state they are in; it is for the end of a
// test, and does nothing after End.
func (s *Storm) Abort() {
	for _, session := range s.sessions {
		session.killDaemon()
	}
}

// Counts are the totals so far.
func (s *Storm) Counts() Counts { return s.progress.counts }

func (s *Storm) report() error {
	var flowing Counts
	for _, session := range s.sessions {
		l, err := session.ledger()
		if err != nil {
			return err
		}
		flowing.add(l)
	}
	s.progress.report(flowing)
	return nil
}

// moment is a random time of at most d, mostly a short one.
func (s *Storm) moment(d time.Duration) time.Duration {
	if s.rng.IntN(3) > 0 {
		d /= 10
	}
	return time.Duration(s.rng.Int64N(int64(d)))
}

// settle waits until every session has a bridge and the broker all spares.
func (s *Storm) settle(ctx context.Context) error {
	for session, from := range s.replacing {
		err := session.await(ctx, "the bridge is replaced", func() (bool, error) { return session.logged("bridge_replaced", from) })
		if err != nil {
			return err
		}
		delete(s.replacing, session)
	}
	for _, session := range s.sessions {
		if !s.regaining {
			break
		}
		err := session.await(ctx, "the spares are back", func() (bool, error) { return session.logged("spares_regained", s.brokerLog) })
		if err != nil {
			return err
		}
	}
	s.regaining = false
	return nil
}

// signal sends a signal to a process that must be there.
func signal(pid uint64, sig syscall.Signal) error {
	if err := syscall.Kill(int(pid), sig); err != nil {
		return fmt.Errorf("signal %d to process %d: %w", int(sig), pid, err)
	}
	return nil
}

// pauseProcess stops a process for a while.
func (s *Storm) pauseProcess(pid uint64) error {
	if err := signal(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(s.moment(stopped))
	return signal(pid, syscall.SIGCONT)
}
