package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
)

// Options of a run.
type Options struct {
	// Bin is the folder of the built programs.
	Bin string
	// Rounds is how often each pair is measured.
	Rounds int
	// Bytes is how much output one throughput round has.
	Bytes int64
	// Say gets progress, a sentence at a time.
	Say func(format string, args ...any)
}

// Spread is a series of measurements.
type Spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// String prints the median between the extremes.
func (s Spread) String() string { return fmt.Sprintf("%.3g (%.3g to %.3g)", s.Median, s.Min, s.Max) }

// Result is one thing measured in two ways. Ratio is that of each round, so
// that a drift of the machine's speed is in both of its sides.
type Result struct {
	What     string `json:"what"`
	Unit     string `json:"unit"`
	Ours     Spread `json:"ours"`
	Baseline string `json:"baseline"`
	Theirs   Spread `json:"theirs"`
	Ratio    Spread `json:"ratio"`
}

// Report is a whole run.
type Report struct {
	CPUs    int      `json:"cpus"`
	Arch    string   `json:"arch"`
	Rounds  int      `json:"rounds"`
	Results []Result `json:"results"`
}

func spread(v []float64) Spread {
	s := slices.Sorted(slices.Values(v))
	return Spread{Min: s[0], Median: s[len(s)/2], Max: s[len(s)-1]}
}

// pair measures ours and theirs in turn.
func pair(o Options, r Result, ours, theirs func() (float64, error)) (Result, error) {
	var a, b, ratio []float64
	for i := range o.Rounds {
		o.Say("%s: round %d of %d", r.What, i+1, o.Rounds)
		x, err := ours()
		if err != nil {
			return r, fmt.Errorf("%s: %w", r.What, err)
		}
		y, err := theirs()
		if err != nil {
			return r, fmt.Errorf("%s, %s: %w", r.What, r.Baseline, err)
		}
		a, b, ratio = append(a, x), append(b, y), append(ratio, x/y)
	}
	r.Ours, r.Theirs, r.Ratio = spread(a), spread(b), spread(ratio)
	return r, nil
}

const profiles = `
[profiles.idle]
kind = "program"
framing = "lines"
command = ["/bin/sleep", "86400"]

[profiles.small]
kind = "program"
framing = "lines"
command = ["/bin/sh", "-c", "read go; exec cat /workspace/small"]

[profiles.large]
kind = "program"
framing = "lines"
command = ["/bin/sh", "-c", "read go; exec cat /workspace/large"]
`

// Run measures everything.
func Run(ctx context.Context, o Options) (report Report, err error) {
	system, err := harness.New(harness.Options{
		Bin: o.Bin, PeerUIDs: []uint32{0}, Profiles: profiles,
		Workspaces: []harness.Workspace{{Name: "project", UID: harness.DefaultPeerUID, GID: harness.DefaultPeerUID}},
	})
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, system.Close()) }()
	o.Say("starting a broker")
	if err := system.StartBroker(ctx); err != nil {
		return Report{}, err
	}
	b := &bench{options: o, system: system, bareRoot: system.Prefix + "/bare"}
	if err := b.prepare(ctx); err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	report = Report{CPUs: runtime.NumCPU(), Arch: runtime.GOARCH, Rounds: o.Rounds}
	for _, measure := range []func(context.Context) (Result, error){b.create, b.small, b.large} {
		r, err := measure(ctx)
		if err != nil {
			return report, err
		}
		report.Results = append(report.Results, r)
	}
	return report, nil
}

func (b *bench) create(ctx context.Context) (Result, error) {
	return pair(b.options, Result{What: "session create to running", Unit: "s", Baseline: "bare runsc create and start, same bundle"},
		func() (float64, error) { return b.timeSession(ctx) },
		func() (float64, error) { return b.timeBare(ctx) })
}

func (b *bench) small(ctx context.Context) (Result, error) {
	return b.throughput(ctx, "small", smallRecord)
}
func (b *bench) large(ctx context.Context) (Result, error) {
	return b.throughput(ctx, "large", largeRecord)
}

func (b *bench) throughput(ctx context.Context, profile string, size int64) (Result, error) {
	what := fmt.Sprintf("records of %d bytes, durable spool, one client", size)
	return pair(b.options, Result{What: what, Unit: "records/s", Baseline: "the same sandbox on a plain pipe"},
		func() (float64, error) { return b.rateThroughBridge(ctx, profile, size) },
		func() (float64, error) { return b.rateThroughPipe(ctx, profile, size) })
}

func perSecond(n int64, d time.Duration) float64 { return float64(n) / d.Seconds() }
