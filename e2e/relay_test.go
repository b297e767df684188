package e2e

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// lies are what a relay between daemons and a bridge does to the protocol, so
// that the daemons meet a bridge with one feature broken.
type lies struct {
	// toBridge returns the message to pass on, or an answer in its place.
	toBridge func(wire.Message) (forward, answer wire.Message)
	// toClient returns the message to pass on, or nil to keep it back.
	toClient func(wire.Message) wire.Message
}

// startRelay listens in a folder that daemons can reach and passes everything
// on to the session's socket, through the lies. It ends with the test.
func startRelay(t *testing.T, upstream string, l lies) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pss-relay-")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{dir: 0o755, path: 0o666} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	var group sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	group.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			bridge, err := net.Dial("unix", upstream)
			if err != nil {
				t.Logf("the relay can't reach the bridge, and hangs up: %v", err)
				client.Close()
				continue
			}
			mu.Lock()
			open = append(open, client, bridge)
			mu.Unlock()
			out := &lockedWriter{conn: client}
			group.Go(func() { relayRequests(client, bridge, out, l) })
			group.Go(func() { relayReplies(bridge, client, out, l) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		group.Wait()
		os.RemoveAll(dir)
	})
	return path
}

// lockedWriter keeps the frames of both relaying goroutines apart.
type lockedWriter struct {
	mu   sync.Mutex
	conn net.Conn
}

func (w *lockedWriter) send(m wire.Message) error {
	b, err := wire.Encode(m)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err = w.conn.Write(wire.AppendFrame(nil, b))
	return err
}

func relayRequests(client, bridge net.Conn, out *lockedWriter, l lies) {
	defer bridge.Close()
	in := &lockedWriter{conn: bridge}
	err := forEach(client, wire.BridgeRequests, func(m wire.Message) error {
		if l.toBridge != nil {
			forward, answer := l.toBridge(m)
			if answer != nil {
				return out.send(answer)
			}
			m = forward
		}
		return in.send(m)
	})
	_ = err // either side hanging up ends the relay
}

func relayReplies(bridge, client net.Conn, out *lockedWriter, l lies) {
	defer client.Close()
	err := forEach(bridge, wire.BridgeReplies, func(m wire.Message) error {
		if l.toClient != nil {
			m = l.toClient(m)
		}
		if m == nil {
			return nil
		}
		return out.send(m)
	})
	_ = err // either side hanging up ends the relay
}

func forEach(conn net.Conn, set wire.Set, visit func(wire.Message) error) error {
	var buf []byte
	for {
		b, err := wire.ReadFrame(conn, wire.MaxBridgeFrame, buf)
		if err != nil {
			return err
		}
		buf = b
		m, err := wire.Decode(set, b)
		if err != nil {
			return errors.Join(errors.New("the relay can't read"), err)
		}
		if err := visit(m); err != nil {
			return err
		}
	}
}
