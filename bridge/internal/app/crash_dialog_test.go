package app_test

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/rig"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// answering is a writer that answers every request it is shown, once for each
// connection, and acknowledges everything at once.
func answering(r *rig.Rig, done <-chan struct{}) error {
	for !isClosed(done) {
		c := r.Connection()
		if c == nil {
			continue
		}
		err := answerConnection(r, c, done)
		c.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func answerConnection(r *rig.Rig, c *rig.Client, done <-chan struct{}) error {
	if c.Conn.WriteMessage(wire.Attach{ID: 1, Mode: wire.ModeWriter, From: wire.FromOldest, Takeover: true}) != nil {
		return nil
	}
	id := uint64(1)
	answered := make(map[string]bool)
	for !isClosed(done) {
		if err := c.Step(); err != nil {
			var e *wire.Error
			if errors.As(err, &e) && e.Code != wire.CodeFrameTruncated {
				return err
			}
			return nil
		}
		for m, e := c.Answer(); m != nil || e != nil; m, e = c.Answer() {
			if e != nil {
				return e
			}
			if a, ok := m.(wire.Attached); ok {
				c.Attached = a
			}
		}
		for _, rec := range c.Records {
			var name string
			if _, err := fmt.Sscanf(string(rec.Data), `{"type":"extension_ui_request","id":%q`, &name); err == nil && !answered[name] {
				answered[name] = true
				if c.TrySendInput(&id, "answer "+name, []byte(answerTo(name))) != nil {
					return nil
				}
			}
			if id++; !rec.Pending {
				if c.Conn.WriteMessage(wire.Ack{ID: id, Lease: c.Attached.Lease, Cursor: wire.Cursor{Epoch: r.Epoch, Sequence: rec.Sequence}}) != nil {
					return nil
				}
			}
		}
		c.Records = nil
	}
	return nil
}

// R45, R48: although the bridge is killed again and again, each request of the agent gets
// exactly one answer, although everything is acknowledged at once.
func TestKilledBridgeKeepsRequests(t *testing.T) {
	r := rig.New(t, rig.Options{Framing: wire.FramingPi})
	const requests = 200
	done := make(chan struct{})
	agent := make(chan error, 1)
	go func() {
		defer close(done)
		in := bufio.NewReader(r.AgentStdin)
		for i := range requests {
			name := fmt.Sprint(i)
			filler := `{"type":"message","text":"` + strings.Repeat("f", i*97%9000) + `"}` + "\n"
			if _, err := r.AgentStdout.WriteString(filler + dialog(name, "confirm") + filler); err != nil {
				agent <- err
				return
			}
			if line, err := in.ReadString('\n'); err != nil || line != answerTo(name) {
				agent <- fmt.Errorf("request %d got %q, %v", i, line, err)
				return
			}
		}
		agent <- nil
	}()
	daemon := make(chan error, 1)
	go func() { daemon <- answering(r, done) }()
	b := launch(t, r)
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	// On a machine that is busy a bridge gets little done before it is killed;
	// the killing ends early enough for the rest.
	deadline := time.After(2 * rig.Timeout)
	enough := time.Now().Add(rig.Timeout / 2)
	kills, most := 0, 100
	for running := true; running; {
		b.WaitReady()
		var kill <-chan time.Time
		if kills < most && time.Now().Before(enough) {
			kill = time.After(time.Duration(rng.IntN(20_000)) * time.Microsecond)
		}
		select {
		case <-done:
			running = false
		case err := <-daemon:
			t.Errorf("daemon: %v", err)
			running = false
		case <-deadline:
			t.Error("the agent does not get its answers in time")
			running = false
		case <-kill:
			kills++
		}
		b.kill(t)
		if running {
			b = launch(t, r)
		}
	}
	r.Drop()
	if err := <-agent; err != nil {
		t.Error(err)
	}
	if !t.Failed() {
		if err := <-daemon; err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d kills over %d requests", kills, requests)
}
