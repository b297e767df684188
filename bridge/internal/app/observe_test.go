package app_test

import (
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/rig"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// roundsVariable sets how many times a storm kills.
const roundsVariable = "PASEO_SANDBOX_STORM_ROUNDS"

func stormRounds(t *testing.T, otherwise int) int {
	t.Helper()
	value := os.Getenv(roundsVariable)
	if value == "" {
		return otherwise
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q, not a number from 1", roundsVariable, value)
	}
	return n
}

var ledgerSeed = maphash.MakeSeed()

// ledger remembers what each sequence meant when a client first saw it: it
// means the same for ever.
type ledger struct {
	mu      sync.Mutex
	records map[uint64]uint64
}

func (l *ledger) note(rec rig.Record) error {
	var h maphash.Hash
	h.SetSeed(ledgerSeed)
	_, _ = h.Write(append([]byte{byte(rec.Stream), byte(rec.Flags)}, rec.Data...)) // it never fails
	l.mu.Lock()
	defer l.mu.Unlock()
	sum := h.Sum64()
	if old, ok := l.records[rec.Sequence]; ok && old != sum {
		return fmt.Errorf("record %d, now %d bytes of stream %d, was another when it was first seen", rec.Sequence, len(rec.Data), rec.Stream)
	}
	l.records[rec.Sequence] = sum
	return nil
}

// observe reads from the oldest record, slowly, over as many connections as it
// takes, until a channel is closed. It may be overtaken; what it gets must be
// right.
func observe(r *rig.Rig, l *ledger, until ...<-chan struct{}) error {
	for {
		for _, c := range until {
			if isClosed(c) {
				return nil
			}
		}
		c := r.Connection()
		if c == nil {
			continue
		}
		err := observeConnection(c, l)
		c.Close()
		if err != nil {
			return err
		}
	}
}

func observeConnection(c *rig.Client, l *ledger) error {
	if c.Conn.WriteMessage(wire.Attach{ID: 1, Mode: wire.ModeObserver, From: wire.FromOldest}) != nil {
		return nil
	}
	// It gives up soon, to begin at the oldest again, where records are freed.
	for range 20 {
		err := c.Step()
		for _, rec := range c.Records {
			if err := l.note(rec); err != nil {
				return fmt.Errorf("an observer: %w", err)
			}
		}
		c.Records = nil
		var e *wire.Error
		switch {
		case errors.As(err, &e) && e.Code != wire.CodeFrameTruncated && e.Code != wire.CodeReplayGap:
			return fmt.Errorf("an observer was told: %w", e)
		case err != nil:
			return nil
		}
		<-time.After(100 * time.Microsecond) // it is slow
	}
	return nil
}

// R31, R48: the exit status outlives bridges that are killed from the moment
// it can be read on; so does what the agent printed before, and had not ended.
func TestKilledBridgeKeepsExit(t *testing.T) {
	for round := range stormRounds(t, 6) {
		r := rig.New(t, rig.Options{})
		b := launch(t, r)
		b.WaitReady()
		if _, err := r.AgentStdout.WriteString("last words"); err != nil {
			t.Fatal(err)
		}
		r.Exit(7)
		for i := range 3 {
			// The streams stay open, so that the end takes a second.
			<-time.After(time.Duration((round*37+i*91)%200) * time.Millisecond)
			b = b.replace(t, r)
			b.WaitReady()
		}
		c := r.Writer()
		c.Expect(wire.StreamStdout, []byte("last words"))
		rec := c.Next()
		if exit, err := wire.DecodeExit(rec.Data); rec.Stream != wire.StreamExit || err != nil || exit.Code != 7 {
			t.Errorf("the exit record says %+v instead of code 7: %v", exit, err)
		}
		c.Close()
		b.kill(t)
		if t.Failed() {
			return
		}
	}
}
