package session

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/journal"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// fakeBroker is away for as many requests as absences says.
type fakeBroker struct {
	absences int
	asked    chan wire.Message
}

func (b *fakeBroker) Up() bool { return true }

func (b *fakeBroker) Tell(wire.Message) error { return nil }

func (b *fakeBroker) Ask(_ time.Duration, make func(id uint64) wire.Message) (wire.Message, error) {
	m := make(1)
	b.asked <- m
	if b.absences > 0 {
		b.absences--
		return nil, &wire.Error{Code: wire.CodeBrokerUnreachable, Message: "it is away"}
	}
	return wire.Done{ID: 1}, nil
}

// R33: an order to terminate that was taken is carried out, also when the broker
// is being restarted at the moment when a signal is due.
func TestTerminateWaitsForBroker(t *testing.T) {
	b := &fakeBroker{absences: 1, asked: make(chan wire.Message, 8)}
	s := &Session{cfg: Config{Broker: b}, log: hclog.NewNullLogger(), stop: make(chan struct{}), ended: make(chan struct{})}
	s.runTerminate(0, nil)
	close(b.asked)
	var got []string
	for m := range b.asked {
		got = append(got, m.(wire.BridgeSignal).Signal)
	}
	if want := []string{"TERM", "TERM", "KILL"}; !slices.Equal(got, want) {
		t.Errorf("the signals were %v, want %v", got, want)
	}
}

// R31 R33: a broker that comes after the end learns how the agent ended, also
// when the exit has no record yet, or got it after the broker had asked.
func TestLaterBrokerLearnsExit(t *testing.T) {
	exit := wire.Exit{Code: 3, Reason: wire.ReasonExited}
	b := &fakeBroker{asked: make(chan wire.Message, 8)}
	s := &Session{
		cfg: Config{Broker: b, Set: statusOf(t, `{"id":"x","exitStatus":3}`)}, log: hclog.NewNullLogger(),
		input: newInputPump(0), data: new(journal.Data), stop: make(chan struct{}), ended: make(chan struct{}),
	}
	s.Returned()
	s.owned.Wait()
	if len(b.asked) != 0 {
		t.Fatalf("the broker was told %+v of an agent that runs", <-b.asked)
	}
	s.gone = true
	for _, known := range []*wire.Exit{nil, &exit} {
		s.exit = known
		s.Returned()
		s.owned.Wait()
		if len(b.asked) != 1 {
			t.Fatalf("the broker was told %d things, known %v", len(b.asked), known)
		}
		if m, ok := (<-b.asked).(wire.BridgeExit); !ok || m.Exit != exit {
			t.Errorf("the broker was told %+v", m)
		}
	}
}

// statusOf is a set in which the reaper has written the status.
func statusOf(t *testing.T, status string) *custody.Set {
	t.Helper()
	path := filepath.Join(t.TempDir(), "exit.data")
	open := func(flags int) *custody.File {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		f := custody.NewFile(fd, "exit.data")
		t.Cleanup(func() { f.Close() })
		if flags&unix.O_CREAT != 0 {
			if _, err := unix.Write(fd, []byte(status)); err != nil {
				t.Fatal(err)
			}
		}
		return f
	}
	return &custody.Set{ExitSpool: open(unix.O_WRONLY | unix.O_CREAT), ExitRead: open(unix.O_RDONLY)}
}
