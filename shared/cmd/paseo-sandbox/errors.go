package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/spf13/cobra"
)

// Codes of this command, beside those of the client and the protocol.
const (
	codeUsage            wire.Code = "usage"
	codeSeveralBrokers   wire.Code = "several_brokers"
	codeAmbiguousSession wire.Code = "ambiguous_session"
	codeOutputClosed     wire.Code = "output_closed"
	codeInputRefused     wire.Code = "input_refused"
	codeUnreadableFile   wire.Code = "unreadable_file"
)

// Exit statuses; longHelp tells them.
const (
	statusFailed      = 1
	statusUsage       = 2
	statusUnreachable = 3
	statusPermission  = 4
	// statusInterrupted is 128 + SIGINT.
	statusInterrupted = 130
)

// exitStatus is an error that says nothing more than the status.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

func usage(cmd *cobra.Command, message string) error {
	return &wire.Error{Code: codeUsage, Message: message, Advice: fmt.Sprintf("see '%s --help'", cmd.CommandPath())}
}

// arguments wants exactly n arguments.
func arguments(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > n:
			return usage(cmd, fmt.Sprintf("%q does not belong here", args[n]))
		case len(args) < n:
			return usage(cmd, "an argument is missing")
		}
		return nil
	}
}

func statusOf(err error) int {
	switch code := wire.CodeOf(err); {
	case code == codeUsage || code == codeSeveralBrokers:
		return statusUsage
	case code == wire.CodePermissionDenied || errors.Is(err, fs.ErrPermission):
		return statusPermission
	case code == wire.CodeBrokerUnreachable:
		return statusUnreachable
	}
	return statusFailed
}

// finish tells the error and returns the exit status.
func (a *app) finish(err error) int {
	var status exitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	}
	a.tell(err)
	return statusOf(err)
}

// tell prints an error.
func (a *app) tell(err error) {
	var e *wire.Error
	if !errors.As(err, &e) {
		e = &wire.Error{Code: wire.CodeInternal, Message: err.Error()}
	}
	if a.json {
		a.stderrJSON(map[string]any{"error": map[string]any{"code": e.Code, "message": e.Message, "advice": e.Advice}})
		return
	}
	fmt.Fprintf(a.stderr, "paseo-sandbox: %s: %s\n", e.Code, e.Message)
	if e.Advice != "" {
		fmt.Fprintf(a.stderr, "what to do: %s\n", e.Advice)
	}
}

// say prints a notice for people; keys are what programs get instead.
func (a *app) say(keys map[string]any, format string, args ...any) {
	if a.json {
		a.stderrJSON(keys)
		return
	}
	fmt.Fprintf(a.stderr, "paseo-sandbox: "+format+"\n", args...)
}

func (a *app) stderrJSON(v any) {
	line, err := json.Marshal(v)
	if err != nil {
		panic(err) // the values are maps of strings and numbers
	}
	a.stderr.Write(append(line, '\n'))
}
