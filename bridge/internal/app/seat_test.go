package app_test

import (
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/rig"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// awaitSeat waits until the bridge says something of the seat that fits. What
// it says in between may be left out, never the last word.
func awaitSeat(t *testing.T, r *rig.Rig, what string, fits func(wire.Seat) bool) wire.Seat {
	t.Helper()
	timeout := time.After(rig.Timeout)
	for {
		select {
		case seat := <-r.Seats:
			if fits(seat) {
				return seat
			}
		case <-timeout:
			t.Fatalf("the broker was not told of %s", what)
		}
	}
}

func taken(s wire.Seat) bool  { return s.HasWriter }
func vacant(s wire.Seat) bool { return !s.HasWriter }

// R35: the broker is told whenever there is a writer and whenever there is
// none: by whichever way it went, and not of observers.
func TestBrokerIsToldOfTheSeat(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	r.Observer(wire.FromOldest)
	c := r.Writer()
	awaitSeat(t, r, "the writer", taken)
	c.Close()
	awaitSeat(t, r, "the end of its connection", vacant)

	c = inherit(t, r)
	awaitSeat(t, r, "the second writer", taken)
	if e := ask(c, func(id uint64) wire.Message { return wire.Release{ID: id, Lease: c.Attached.Lease} }); e != nil {
		t.Fatal(e)
	}
	if seat := awaitSeat(t, r, "the release", vacant); seat.Released {
		t.Error("a session that runs is said to be needed by nobody")
	}

	c = r.Attach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromOldest, LeaseMillis: wire.MinLeaseMillis})
	if m, ok := c.Read().(wire.Fenced); !ok {
		t.Fatalf("got %+v", m)
	}
	awaitSeat(t, r, "the end of its lease", vacant)
}

// R31: released is a session whose exit record a writer has acknowledged before
// it gave the seat back; one that goes without a word, or without the ack, has
// released nothing, and one that comes later takes it back.
func TestReleasedIsSaidOnce(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	r.AgentStdout.Close()
	r.AgentStderr.Close()
	r.Exit(0)
	release := func(c *rig.Client) {
		t.Helper()
		if e := ask(c, func(id uint64) wire.Message { return wire.Release{ID: id, Lease: c.Attached.Lease} }); e != nil {
			t.Fatal(e)
		}
	}
	c := r.Writer()
	exit := c.Next()
	if exit.Stream != wire.StreamExit {
		t.Fatalf("got %+v", exit)
	}
	release(c)
	if seat := awaitSeat(t, r, "the release without an ack", vacant); seat.Released {
		t.Error("an exit that nobody acknowledged was released")
	}
	c = inherit(t, r)
	awaitSeat(t, r, "the second writer", taken)
	c.Next()
	if _, e := c.Ack(exit.Sequence); e != nil {
		t.Fatal(e)
	}
	release(c)
	awaitSeat(t, r, "the release", func(s wire.Seat) bool { return vacant(s) && s.Released })
	c = r.Attach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromLive})
	awaitSeat(t, r, "the third writer", taken)
	c.Close()
	if seat := awaitSeat(t, r, "its end", vacant); seat.Released {
		t.Error("a later writer's connection that broke has released the session")
	}
}
