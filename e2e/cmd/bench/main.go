// Command bench measures session start and throughput beside bare runsc, in one
// run, and prints a table on standard error and one JSON object on standard
// output. Exit status: 0, 1 when something failed, 2 for wrong usage, 130
// after Ctrl-C.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"

	"git.jb.codes/jb/paseo-sandbox/e2e/bench"
)

func main() { os.Exit(run()) }

func run() int {
	bin := flag.String("bin", "bin", "the folder of the built programs")
	rounds := flag.Int("rounds", 5, "how often each pair is measured")
	mib := flag.Int64("mib", 256, "output of one throughput round, in MiB")
	flag.Parse()
	if flag.NArg() != 0 || *rounds < 1 || *mib < 1 {
		flag.Usage()
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report, err := bench.Run(ctx, bench.Options{Bin: *bin, Rounds: *rounds, Bytes: *mib << 20, Say: func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
	}})
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		if ctx.Err() != nil {
			return 130
		}
		return 1
	}
	print(report)
	line, err := json.Marshal(report)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	fmt.Println(string(line))
	return 0
}

func print(report bench.Report) {
	w := tabwriter.NewWriter(os.Stderr, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "what\tunit\tours\tbaseline\tratio\tbaseline is\n")
	for _, r := range report.Results {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.What, r.Unit, r.Ours, r.Theirs, r.Ratio, r.Baseline)
	}
	w.Flush()
}
