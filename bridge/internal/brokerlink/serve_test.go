package brokerlink

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

const testTimeout = 30 * time.Second

// returner gives duplicates of one file.
type returner struct {
	file     *os.File
	returned chan struct{}
}

func (r *returner) Return() (wire.Resumed, custody.Duplicates, error) {
	fd, err := unix.FcntlInt(r.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	d := custody.Duplicates{Names: []wire.DescriptorName{wire.FDIndex}, FDs: []int{fd}}
	return wire.Resumed{Descriptors: d.Names}, d, err
}

func (r *returner) Returned() { r.returned <- struct{}{} }

func dial(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(testTimeout))
	return c
}

func openFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// R33: a later broker gets the descriptors and the link, whoever says something
// else gets nothing and changes nothing, and nothing leaks.
func TestResume(t *testing.T) {
	rootonly.Test(t)
	first, l := openLink(t)
	path := filepath.Join(t.TempDir(), "custody")
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r := &returner{file, make(chan struct{}, 8)}
	l.Serve(listener, configure, r, hclog.NewNullLogger())
	before := openFDs(t)

	other := configure
	other.Epoch = "ffffffffffffffff"
	for name, m := range map[string]wire.Message{
		"another epoch":   wire.Resume{Session: other.Session, Epoch: other.Epoch},
		"another message": wire.Done{ID: 1},
	} {
		c := dial(t, path)
		send(t, c, m, int(file.Fd()))
		if payload, fds, err := fdpass.Receive(c, wire.MaxCustodyMessage); err == nil {
			fdpass.CloseAll(fds)
			t.Errorf("%s: got %x with %d descriptors", name, payload, len(fds))
		}
		c.Close()
	}
	// The first broker still has the link.
	asked := make(chan error, 1)
	ask := func() { _, err := l.Ask(testTimeout, signal); asked <- err }
	go ask()
	send(t, first, wire.Done{ID: receiveSignal(t, first).ID})
	if err := <-asked; err != nil {
		t.Fatal(err)
	}

	// A request that waits for a broker that is replaced fails at once.
	go ask()
	receiveSignal(t, first)
	second := dial(t, path)
	send(t, second, wire.Resume{Session: configure.Session, Epoch: configure.Epoch})
	payload, fds, err := fdpass.Receive(second, wire.MaxCustodyMessage)
	if err != nil || len(fds) != 1 {
		t.Fatalf("got %d descriptors, %v", len(fds), err)
	}
	fdpass.CloseAll(fds)
	if m, err := wire.Decode(wire.FromBridge, payload); err != nil || m.Kind() != "resumed" {
		t.Fatalf("got %v, %v", m, err)
	}
	<-r.returned
	if err := <-asked; wire.CodeOf(err) != wire.CodeBrokerUnreachable {
		t.Errorf("got %v", err)
	}
	go ask()
	send(t, second, wire.Done{ID: receiveSignal(t, second).ID})
	if err := <-asked; err != nil || !l.Up() {
		t.Errorf("got %v, up %v", err, l.Up())
	}
	// The death of the broker before says nothing of this one.
	first.Close()
	go ask()
	send(t, second, wire.Done{ID: receiveSignal(t, second).ID})
	if err := <-asked; err != nil || !l.Up() {
		t.Errorf("got %v, up %v", err, l.Up())
	}
	second.Close()
	deadline := time.Now().Add(testTimeout)
	for openFDs(t) > before || l.Up() {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors, before %d; up %v", openFDs(t), before, l.Up())
		}
		time.Sleep(time.Millisecond)
	}
}
