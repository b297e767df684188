package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"text/tabwriter"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Exit statuses.
const (
	exitFailed = 1
	exitUsage  = 2
)

// errUsage marks a wrong command line.
var errUsage = errors.New("usage")

// errUnhealthy is the end of a doctor that has found something.
var errUnhealthy = errors.New("unhealthy")

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	root := command()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	var e *wire.Error
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUnhealthy):
	case errors.As(err, &e):
		message := e.Message
		if e.Err != nil {
			message += ": " + e.Err.Error()
		}
		fmt.Fprintf(stderr, "%s: %s. %s\n", e.Code, message, e.Advice)
	case errors.Is(err, errUsage), strings.HasPrefix(err.Error(), "unknown command"):
		fmt.Fprintf(stderr, "usage: %s. Run broker-admin --help\n", strings.TrimPrefix(err.Error(), "usage: "))
		return exitUsage
	default:
		fmt.Fprintln(stderr, "failed:", err)
	}
	return exitFailed
}

// app is what all commands share.
type app struct {
	prefix string
	json   bool
	layout layout.Layout
}

func command() *cobra.Command {
	a := &app{}
	root := &cobra.Command{
		Use: "broker-admin", Short: "Look after the broker of sandboxed agent sessions",
		Long:         "Look after the broker of sandboxed agent sessions. It needs root.\n\nExit status: 0 success, 1 failure or an unhealthy system, 2 wrong usage.",
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) (err error) {
			a.layout, err = layout.At(a.prefix)
			return err
		},
	}
	root.PersistentFlags().StringVar(&a.prefix, "prefix", "", "the broker's prefix, for one that was started with it")
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w: %w", errUsage, err) })
	deployment := &cobra.Command{Use: "deployment", Short: "Show what the registry says of deployments"}
	root.AddCommand(a.doctor(), a.sessions(), a.terminate(), a.delete(), a.gc(), a.reload(), a.audit(), deployment, a.rootfs())
	deployment.AddCommand(a.deploymentList(), a.deploymentShow())
	return root
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%w: there is no argument %q here", errUsage, args[0])
	}
	return nil
}

func oneArg(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("%w: give one %s", errUsage, what)
		}
		return nil
	}
}

func atMostOneArg(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 1 {
			return fmt.Errorf("%w: give at most one %s", errUsage, what)
		}
		return nil
	}
}

// print writes v as JSON, or the rows as a table.
func (a *app) print(w io.Writer, v any, rows [][]string) error {
	if a.json {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}
