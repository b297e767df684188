package session

import (
	"slices"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
)

// fakeBroker is away for as many requests as absences says.
type fakeBroker struct {
	absences int
	asked    chan wire.Message
}

func (b *fakeBroker) Up() bool { return true }

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
