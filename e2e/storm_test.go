package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/e2e/storm"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
)

// stormVariable is a duration: TestStorm goes on for so long, and prints counts.
const stormVariable = "PASEO_SANDBOX_STORM"

// stormTimeout bounds one round.
const stormTimeout = 10 * time.Minute

// shortStorm is what TestStorm does without the variable, in a random order.
var shortStorm = map[storm.Kind]int{
	storm.KillDaemon: 10, storm.KillBridge: 10, storm.KillBroker: 4,
	storm.StopDaemon: 4, storm.StopBridge: 4, storm.StopBroker: 4,
}

// R33 R40 R43 R48: daemon, bridge and broker are killed, and stopped for a
// while, again and again, then the reaper is killed: no byte is lost, repeated
// or reordered in either direction. When broker and bridge die at once, each
// session goes on whole or is said to be unattached.
func TestStorm(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	long, err := stormDuration()
	if err != nil {
		t.Fatal(err)
	}
	limit, out := stormTimeout, io.Writer(nil)
	if long > 0 {
		limit, out = long+stormTimeout, os.Stdout
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began, st := time.Now(), newStorm(t, out)
	for round := 1; round == 1 || time.Since(began) < long; round++ {
		if err := blow(ctx, st, long > 0); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	if t.Logf("%s", st.Counts()); long > 0 {
		fmt.Printf("storm: %v: %s, no fault\n", time.Since(began).Round(time.Second), st.Counts())
	}
}

func stormDuration() (time.Duration, error) {
	if v := os.Getenv(stormVariable); v != "" {
		return time.ParseDuration(v)
	}
	return 0, nil
}

// blow is one round of the storm.
func blow(ctx context.Context, st *storm.Storm, long bool) error {
	if err := st.Begin(ctx, 2); err != nil {
		return err
	}
	var deck []storm.Kind
	for kind, n := range shortStorm {
		deck = append(deck, slices.Repeat([]storm.Kind{kind}, n)...)
	}
	if long {
		deck = append(deck, storm.HangBridge, storm.FreezeBroker)
	}
	rand.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
	deck = append(deck, storm.KillReaper, storm.KillBridge, storm.KillBroker)
	for _, kind := range deck {
		if err := st.Strike(ctx, kind); err != nil {
			return err
		}
	}
	if err := st.End(ctx); err != nil {
		return err
	}
	if err := st.Begin(ctx, 2); err != nil {
		return err
	}
	return st.Both(ctx)
}

// R33 R48: a bridge that is stopped is noticed, killed and replaced, and once it
// may go on it can't; nothing is lost by it.
func TestHungBridgeIsReplaced(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), stormTimeout)
	defer cancel()
	st := newStorm(t, nil)
	if err := st.Begin(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if err := st.Strike(ctx, storm.HangBridge); err != nil {
		t.Fatal(err)
	}
	if err := st.End(ctx); err != nil {
		t.Fatal(err)
	}
}

// newStorm starts a system for a storm.
func newStorm(t *testing.T, out io.Writer) *storm.Storm {
	t.Helper()
	s := startWorkloadSystem(t, harness.Options{Profiles: storm.Profiles, PeerUIDs: []uint32{harness.DefaultPeerUID, 0}})
	st := storm.New(s, out)
	t.Cleanup(st.Abort)
	return st
}
