package storm

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

func (s *Storm) killDaemon(_ context.Context, target *session) error {
	if err := target.fault(); err != nil {
		return err
	}
	target.killDaemon()
	return target.startDaemon()
}

func (s *Storm) stopDaemon(_ context.Context, target *session) error {
	return s.pauseProcess(uint64(target.daemon.Process.Pid))
}

// killBridge may strike again at a bridge that has just been started, as long
// as the broker has the spares.
func (s *Storm) killBridge(ctx context.Context, target *session) error {
	if s.regaining || s.rng.IntN(3) > 0 {
		if err := s.settle(ctx); err != nil {
			return err
		}
	}
	from, err := logEnd(s.system)
	if err != nil {
		return err
	}
	info, err := target.inspect(ctx)
	if err != nil {
		return err
	}
	if err := signal(info.BridgePID, syscall.SIGKILL); err != nil {
		return err
	}
	s.replacing[target] = from
	return target.await(ctx, "another bridge", func() (bool, error) {
		now, err := target.inspect(ctx)
		if err == nil && now.State != wire.StateRunning && now.State != wire.StateStalled {
			err = fmt.Errorf("the session is %s", now.State)
		}
		return now.BridgePID != info.BridgePID, err
	})
}

func (s *Storm) stopBridge(ctx context.Context, target *session) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	info, err := target.inspect(ctx)
	if err != nil {
		return err
	}
	return s.pauseProcess(info.BridgePID)
}

// hangBridge waits for the replacement of a bridge that is stopped.
func (s *Storm) hangBridge(ctx context.Context, target *session) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	from, err := logEnd(s.system)
	if err != nil {
		return err
	}
	info, err := target.inspect(ctx)
	if err != nil {
		return err
	}
	if err := signal(info.BridgePID, syscall.SIGSTOP); err != nil {
		return err
	}
	s.replacing[target] = from
	if err := s.settle(ctx); err != nil {
		return err
	}
	// A process that is dead can't go on; its pid may be another's by now.
	if err := syscall.Kill(int(info.BridgePID), syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// killBroker kills it, sometimes while a bridge is stopped, and starts the next
// one, which may be killed before it has all spares.
func (s *Storm) killBroker(ctx context.Context, target *session) error {
	if s.rng.IntN(3) > 0 || len(s.replacing) > 0 {
		if err := s.settle(ctx); err != nil {
			return err
		}
	}
	info, err := target.inspect(ctx)
	if err != nil {
		return err
	}
	if err := s.system.StopBroker(syscall.SIGKILL); err != nil {
		return err
	}
	hold := s.rng.IntN(4) == 0
	if hold {
		if err := signal(info.BridgePID, syscall.SIGSTOP); err != nil {
			return err
		}
	}
	err = s.startBroker(ctx)
	if hold {
		err = errors.Join(err, signal(info.BridgePID, syscall.SIGCONT))
	}
	return err
}

func (s *Storm) startBroker(ctx context.Context) error {
	var err error
	if s.brokerLog, err = logEnd(s.system); err != nil {
		return err
	}
	s.regaining = true
	return s.system.StartBroker(ctx)
}

func (s *Storm) stopBroker(context.Context, *session) error {
	return s.pauseProcess(uint64(s.system.BrokerPID()))
}

// frozen is longer than a broker waits for a word of a bridge.
const frozen = 10 * wire.BridgeAlivePeriod

func (s *Storm) freezeBroker(ctx context.Context, target *session) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	before, err := target.inspect(ctx)
	if err != nil {
		return err
	}
	pid := uint64(s.system.BrokerPID())
	if err := signal(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(frozen)
	if err := signal(pid, syscall.SIGCONT); err != nil {
		return err
	}
	if err := target.moves(ctx); err != nil {
		return err
	}
	after, err := target.inspect(ctx)
	if err == nil && after.BridgePID != before.BridgePID {
		err = errors.New("a bridge that lives was replaced")
	}
	return err
}

// killReaper kills a session's reaper: its exit status is lost, and nothing
// else.
func (s *Storm) killReaper(_ context.Context, target *session) error {
	if target.orphaned {
		return nil
	}
	pid, err := target.reaper()
	if err != nil {
		return err
	}
	target.orphaned = true
	return signal(uint64(pid), syscall.SIGKILL)
}

// Both kills the broker and every bridge at nearly the same instant, starts a
// broker, and checks that each session says the truth: it goes on with every
// byte, or it is unattached, or its agent, whose input has ended, has ended for
// a reason that nobody knows; then what was spooled is right up to its end.
func (s *Storm) Both(ctx context.Context) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	var bridges []uint64
	for _, session := range s.sessions {
		info, err := session.inspect(ctx)
		if err != nil {
			return err
		}
		bridges = append(bridges, info.BridgePID)
	}
	from, err := logEnd(s.system)
	if err != nil {
		return err
	}
	if err := s.killBoth(bridges); err != nil {
		return err
	}
	if err := s.startBroker(ctx); err != nil {
		return err
	}
	s.progress.counts.Deeds[KillBoth]++
	for _, session := range s.sessions {
		if err := s.decide(ctx, session, from); err != nil {
			return fmt.Errorf("%s: %w", KillBoth, err)
		}
	}
	s.regaining = false
	return errors.Join(s.report(), s.remove(ctx))
}

func (s *Storm) killBoth(bridges []uint64) error {
	broker := uint64(s.system.BrokerPID())
	first, second := append([]uint64{broker}, bridges...), []uint64(nil)
	if s.rng.IntN(2) == 0 {
		first, second = bridges, []uint64{broker}
	}
	for _, pid := range first {
		if err := signal(pid, syscall.SIGKILL); err != nil {
			return err
		}
	}
	if second != nil {
		// The broker may have begun, or done, the replacement.
		time.Sleep(s.moment(stopped))
		if err := signal(broker, syscall.SIGKILL); err != nil {
			return err
		}
	}
	return s.system.StopBroker(syscall.SIGKILL)
}

// decide waits for what the broker says of a session, and holds it to it.
func (s *Storm) decide(ctx context.Context, session *session, from int64) error {
	lost := false
	err := session.await(ctx, "the broker knows what became of it", func() (bool, error) {
		info, err := session.inspect(ctx)
		lost = info.State == wire.StateUnattached || info.Exit != nil && info.Exit.Reason == wire.ReasonUnknown
		regained, err2 := session.logged("spares_regained", s.brokerLog)
		return lost || regained, errors.Join(err, err2)
	})
	if err != nil {
		return err
	}
	if !lost {
		s.progress.counts.Survived++
		return errors.Join(session.moves(ctx), session.stop(ctx), session.verify())
	}
	s.progress.counts.Lost++
	return s.readLost(ctx, session)
}
