// Command demo shows the main job to a newcomer: Pi in a sandbox goes on with
// its work while the daemon that drives it is killed and replaced.
//
// Each step is a line on standard error. The last line of standard output is
// one JSON object, the report. The exit status is 0 when everything was
// proved, 1 when something was not, 2 for wrong usage and 130 after Ctrl-C.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/story"
)

func main() {
	story.RunIfDaemon()
	os.Exit(run())
}

func run() int {
	bin := flag.String("bin", "bin", "the folder of the built programs")
	flag.Parse()
	if flag.NArg() != 0 {
		flag.Usage()
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	start := time.Now()
	report := story.Run(ctx, story.Options{Bin: *bin, Say: func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%6.2fs  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}})
	if report.Error != "" {
		fmt.Fprintln(os.Stderr, "demo:", report.Error)
	}
	line, err := json.Marshal(report)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 1
	}
	fmt.Println(string(line))
	switch {
	case ctx.Err() != nil:
		return 130
	case report.Verdict != story.VerdictProved:
		return 1
	}
	return 0
}
