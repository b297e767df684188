package brokerlink

import (
	"net"
	"os"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func pair(t *testing.T) (broker, bridge *net.UnixConn) {
	t.Helper()
	broker, fd, err := fdpass.Pair()
	if err != nil {
		t.Fatal(err)
	}
	bridge, err = fdpass.Adopt(fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { broker.Close() })
	return broker, bridge
}

func send(t *testing.T, c *net.UnixConn, m wire.Message, fds ...int) {
	t.Helper()
	b, err := wire.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := fdpass.Send(c, b, fds...); err != nil {
		t.Fatal(err)
	}
}

func receiveSignal(t *testing.T, c *net.UnixConn) wire.BridgeSignal {
	t.Helper()
	b, _, err := fdpass.Receive(c, wire.MaxCustodyMessage)
	if err != nil {
		t.Fatal(err)
	}
	m, err := wire.Decode(wire.FromBridge, b)
	if err != nil {
		t.Fatal(err)
	}
	return m.(wire.BridgeSignal)
}

var configure = wire.Configure{
	Session: "0198c0de00007000800000000000beef", Epoch: "0011223344556677", Framing: wire.FramingLines,
	Descriptors: []wire.DescriptorName{wire.FDIndex}, PeerUIDs: []uint64{1}, MaxRecord: 1, MaxInput: 1, SpoolLimit: 1,
}

func signal(id uint64) wire.Message { return wire.BridgeSignal{ID: id, Signal: "TERM"} }

func openLink(t *testing.T) (*net.UnixConn, *Link) {
	t.Helper()
	broker, bridge := pair(t)
	send(t, broker, configure, 0)
	l, _, fds, err := Receive(bridge)
	if err != nil || len(fds) != 1 {
		t.Fatal(fds, err)
	}
	fdpass.CloseAll(fds)
	t.Cleanup(l.Close)
	return broker, l
}

// Answers find their requests in whatever order they come; what nobody asked
// for is dropped; an error is the request's error.
func TestAnswers(t *testing.T) {
	broker, l := openLink(t)
	results := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := l.Ask(time.Minute, signal)
			results <- err
		}()
	}
	first, second := receiveSignal(t, broker), receiveSignal(t, broker)
	send(t, broker, wire.Done{ID: 999})
	if err := fdpass.Send(broker, []byte("garbage")); err != nil {
		t.Fatal(err)
	}
	send(t, broker, wire.ErrorMessage{ID: second.ID, Code: wire.CodeSessionNotRunning, Message: "it has ended"})
	if err := <-results; wire.CodeOf(err) != wire.CodeSessionNotRunning {
		t.Fatal(err)
	}
	send(t, broker, wire.Done{ID: first.ID})
	if err := <-results; err != nil {
		t.Fatal(err)
	}
}

// R33: a broker that is silent or dead is told apart, and nobody waits for
// ever.
func TestSilentAndDeadBroker(t *testing.T) {
	broker, l := openLink(t)
	if _, err := l.Ask(time.Millisecond, signal); wire.CodeOf(err) != wire.CodeTimeout {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := l.Ask(time.Minute, signal)
		waiting <- err
	}()
	receiveSignal(t, broker)
	receiveSignal(t, broker)
	broker.Close()
	if err := <-waiting; wire.CodeOf(err) != wire.CodeBrokerUnreachable {
		t.Fatal(err)
	}
	if _, err := l.Ask(time.Minute, signal); wire.CodeOf(err) != wire.CodeBrokerUnreachable || l.Up() {
		t.Fatal(err)
	}
}

// Anything but a configuration is refused, and its descriptors are closed.
func TestNoConfiguration(t *testing.T) {
	for name, message := range map[string]func(t *testing.T, c *net.UnixConn){
		"another message": func(t *testing.T, c *net.UnixConn) { send(t, c, wire.Done{ID: 1}, 0, 1) },
		"garbage":         func(t *testing.T, c *net.UnixConn) { _ = fdpass.Send(c, []byte{0xff}, 0, 1) },
		"nothing":         func(_ *testing.T, c *net.UnixConn) { c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			count := func() int {
				entries, err := os.ReadDir("/proc/self/fd")
				if err != nil {
					t.Fatal(err)
				}
				return len(entries)
			}
			broker, bridge := pair(t)
			before := count()
			message(t, broker)
			if _, _, _, err := Receive(bridge); err == nil {
				t.Fatal("it was taken for a configuration")
			}
			// The bridge's end is closed, and in one case the broker's.
			if after := count(); after >= before {
				t.Fatalf("%d descriptors before, %d after", before, after)
			}
		})
	}
}
