package main

import (
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
)

func main() {
	a := &app{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, runDir: "/run/paseo-sandbox", getenv: os.Getenv,
		terminal: isTerminal(os.Stderr),
	}
	os.Exit(a.main(os.Args[1:]))
}

// app is one run of the command.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	// runDir is where brokers have their sockets.
	runDir string
	// terminal says that a person looks at stderr.
	terminal bool

	socket  string
	json    bool
	verbose bool
}

const longHelp = `Use sandboxed agent sessions.

The broker's socket is, in this order: --socket, $PASEO_SANDBOX_SOCKET, the only
/run/paseo-sandbox/d/*/broker.sock that this user may use, and
/run/paseo-sandbox/broker.sock, its place in a container.

A session may be named by the beginning of its id, as long as only one has it.

Exit status:
  0  done
  1  it failed; the reason is on standard error
  2  the command line is wrong
  3  no broker can be reached
  4  this user has no permission
  run, and attach until the agent ends, exit with the agent's own status: its
  exit code, or 128+n when signal n ended it`

func (a *app) main(args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// The flags behind the wrong one were not parsed.
		a.json = a.json || slices.Contains(args, "--json")
		return usage(cmd, err.Error())
	})
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	return a.finish(root.Execute())
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "paseo-sandbox",
		Short:         "Use sandboxed agent sessions",
		Long:          longHelp,
		Args:          arguments(0),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.socket, "socket", "", "`PATH` of the broker's socket")
	flags.BoolVar(&a.json, "json", false, "print data, and errors on standard error, as JSON")
	flags.BoolVarP(&a.verbose, "verbose", "v", false, "say what takes long, even when nobody looks")
	root.AddCommand(a.runCommand(), a.attachCommand(), a.lsCommand(), a.inspectCommand(), a.cancelCommand(), a.stopCommand())
	return root
}
