package setup

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode"
)

// heartbeat is how often a running stage says that it is alive.
const heartbeat = 2 * time.Second

// Progress writes one line for each event. It may be used by several
// goroutines.
type Progress struct {
	mu    sync.Mutex
	w     io.Writer
	start time.Time
}

// NewProgress returns a Progress that writes to w.
func NewProgress(w io.Writer) *Progress { return &Progress{w: w, start: time.Now()} }

// Printf writes a line with the time since the start.
func (p *Progress) Printf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "%6.1fs  %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}

// During runs f; while it runs longer than the heartbeat, a line every so often
// shows what detail returns. detail may be nil.
func (p *Progress) During(what string, detail func() string, f func() error) error {
	begin := time.Now()
	ended := make(chan struct{})
	var beats sync.WaitGroup
	beats.Go(func() {
		wait := heartbeat
		for {
			select {
			case <-ended:
				return
			case <-time.After(wait):
			}
			line := ""
			if detail != nil {
				line = printable(detail())
			}
			p.Printf("%s: %.0f s  %s", what, time.Since(begin).Seconds(), line)
			wait = min(2*wait, 8*time.Second)
		}
	})
	err := f()
	close(ended)
	beats.Wait()
	if err == nil {
		p.Printf("%s: done in %.1f s", what, time.Since(begin).Seconds())
	}
	return err
}

// printable makes a line of another program's output fit for a terminal.
func printable(line string) string {
	line = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, line)
	if short := []rune(line); len(short) > 100 {
		return string(short[:100]) + "…"
	}
	return line
}
