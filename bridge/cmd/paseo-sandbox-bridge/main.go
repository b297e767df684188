package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/app"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/confine"
	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// Exit statuses.
const (
	exitOK = iota
	exitFailed
	_
	exitPrivileged
)

// linkFD is where the broker puts the bridge's end of the socketpair.
const linkFD = 3

func main() { os.Exit(run()) }

func run() int {
	log := hclog.New(&hclog.LoggerOptions{Name: "paseo-sandbox-bridge", Level: hclog.Info, Output: logWriter{}, JSONFormat: true})
	if err := confine.Apply(); err != nil {
		return fail(log, err, exitPrivileged)
	}
	// Standard error may be a pipe whose reader dies with the broker. Without
	// this a log line would end the session (os/signal, SIGPIPE).
	signal.Ignore(unix.SIGPIPE, unix.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	unix.CloseOnExec(linkFD)
	conn, err := fdpass.Adopt(linkFD)
	if err != nil {
		return fail(log, &wire.Error{
			Code:    wire.CodeInvalidConfig,
			Message: "descriptor 3 is not the broker's socket",
			Advice:  "the bridge is started by the broker, not by hand",
			Err:     err,
		}, exitFailed)
	}
	if err := app.Run(ctx, conn, log); err != nil {
		return fail(log, err, exitFailed)
	}
	return exitOK
}

// logWriter writes to standard error, and drops what does not fit into the
// pipe at once: os.Stderr would wait, and every client with it, for a broker
// that is stopped or waits for its own log.
type logWriter struct{}

func (logWriter) Write(b []byte) (int, error) {
	n, err := unix.Write(unix.Stderr, b)
	if errors.Is(err, unix.EAGAIN) {
		return len(b), nil
	}
	return max(n, 0), err
}

// fail logs an error with its code and advice.
func fail(log hclog.Logger, err error, status int) int {
	advice := ""
	var e *wire.Error
	if errors.As(err, &e) {
		advice = e.Advice
	}
	log.Error(fmt.Sprint(err), "code", string(wire.CodeOf(err)), "advice", advice)
	return status
}
