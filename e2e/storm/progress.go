package storm

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// reportEvery is the time between two lines of progress.
const reportEvery = 10 * time.Second

// Counts are what a storm has done and checked.
type Counts struct {
	Deeds    map[Kind]int
	Sessions int
	// Stdout, Stderr and Stdin are bytes that were checked; Duplicates are
	// inputs that were sent again after they had been accepted.
	Stdout, Stderr, Stdin, Duplicates uint64
	// Survived and Lost are how sessions came out of KillBoth.
	Survived, Lost int
}

func (c *Counts) add(l ledger) {
	c.Stdout += l.Stdout.Bytes
	c.Stderr += l.Stderr.Bytes
	c.Stdin += l.Stdin.Bytes
	c.Duplicates += l.Duplicates
}

// String is one line.
func (c Counts) String() string {
	var b strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(c.Deeds)) {
		fmt.Fprintf(&b, "%s %d, ", kind, c.Deeds[kind])
	}
	fmt.Fprintf(&b, "%d sessions, %d bytes of output and %d of input checked, %d inputs sent again", c.Sessions, c.Stdout+c.Stderr, c.Stdin, c.Duplicates)
	if n := c.Survived + c.Lost; n > 0 {
		fmt.Fprintf(&b, ", of both deaths %d sessions of %d came out whole and %d said that they did not", c.Survived, n, c.Lost)
	}
	return b.String()
}

// progress prints counts now and then.
type progress struct {
	counts Counts
	out    io.Writer
	began  time.Time
	last   time.Time
}

func newProgress(out io.Writer) *progress {
	now := time.Now()
	return &progress{counts: Counts{Deeds: make(map[Kind]int)}, out: out, began: now, last: now}
}

// report prints the counts with those of sessions that go on, if it is time.
func (p *progress) report(flowing Counts) {
	if p.out == nil || time.Since(p.last) < reportEvery {
		return
	}
	p.last = time.Now()
	c := p.counts
	c.Stdout += flowing.Stdout
	c.Stderr += flowing.Stderr
	c.Stdin += flowing.Stdin
	c.Duplicates += flowing.Duplicates
	fmt.Fprintf(p.out, "storm: %4.0fs: %s\n", time.Since(p.began).Seconds(), c)
}
