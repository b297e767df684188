package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

func isTerminal(f *os.File) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	terminal := false
	err = raw.Control(func(fd uintptr) {
		_, err := unix.IoctlGetTermios(int(fd), unix.TCGETS)
		terminal = err == nil
	})
	return err == nil && terminal
}

// patience is how long something may take before it is mentioned.
const patience = 2 * time.Second

// progress says what is going on once it has taken a while and somebody
// looks. The returned function ends it.
func (a *app) progress(what string) (done func()) {
	if !a.verbose && (!a.terminal || a.json) {
		return func() {}
	}
	timer := time.AfterFunc(patience, func() { a.say(map[string]any{"progress": what}, "%s", what) })
	return func() { timer.Stop() }
}

// interrupts are the signals by which a person ends the command: the first
// asks it to end in order, the second makes it leave at once.
type interrupts struct {
	// first is closed by the first one, ctx ended by the second.
	first chan struct{}
	ctx   context.Context
}

// interrupted reports whether the first one came.
func (i *interrupts) interrupted() bool {
	select {
	case <-i.first:
		return true
	default:
		return false
	}
}

// catchInterrupts watches for INT, TERM and HUP, and keeps a closed pipe from
// ending the process, until stop is called.
func catchInterrupts(ctx context.Context) (i *interrupts, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	i = &interrupts{first: make(chan struct{}), ctx: ctx}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, unix.SIGPIPE)
	var watcher sync.WaitGroup
	watcher.Go(func() {
		select {
		case <-signals:
			close(i.first)
		case <-ctx.Done():
			return
		}
		select {
		case <-signals:
			cancel()
		case <-ctx.Done():
		}
	})
	return i, func() {
		signal.Stop(signals)
		signal.Stop(pipes)
		cancel()
		watcher.Wait()
	}
}
