package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/spf13/cobra"
)

type runOptions struct {
	create     client.CreateOptions
	extensions []string
	mcpConfig  string
	keep       bool
	onExit     string
	input      string
	grace      time.Duration
}

// Values of --on-exit and --input.
const (
	onExitTerminate = "terminate"
	onExitRelease   = "release"
	inputLines      = "lines"
	inputChunks     = "chunks"
)

func (a *app) runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run {--workspace NAME | --path PATH}",
		Short: "Create a session and talk with its agent",
		Long: `Create a session and join it with standard input and output: each line of
standard input is one input of the agent, what the agent prints comes out
unchanged, and the end of standard input ends the agent's.

An interrupt stops the agent: its input is closed, TERM follows after the
grace, KILL after the grace again. A second interrupt leaves at once. When the
agent has ended, its session is deleted, unless --keep is given. The exit
status is the agent's: its exit code, or 128+n when signal n ended it.

The files of --extension and --mcp-config are read here and sent: the agent
sees copies, read-only, below /attachments, by their own names; 16 files and
48 KiB together at most. --mcp-config needs Pi's MCP adapter among the
extensions; without it Pi ends with "Unknown option".`,
		Example: `  echo '{"type":"get_state","id":"1"}' | paseo-sandbox run --workspace project
  paseo-sandbox run --workspace project --folder services/api
  paseo-sandbox run --path /workspace/project
  paseo-sandbox run --workspace project --model anthropic/claude-sonnet-4-5 --extension ./ask.ts`,
		Args: arguments(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return a.run(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.create.Workspace, "workspace", "", "`NAME` of the workspace")
	flags.StringVar(&o.create.Path, "path", "", "`PATH` of the workspace, or of a folder below it, as it is seen here; the operator registers such paths")
	flags.StringVar(&o.create.Folder, "folder", "", "work in the `FOLDER` below the workspace alone, if the operator allows it")
	flags.StringVar(&o.create.Profile, "profile", "", "`NAME` of the launch profile; the deployment has a default")
	flags.StringVar(&o.create.AgentSession, "session-id", "", "the agent's own session `ID`, to create or to resume")
	flags.StringVar(&o.create.Model, "model", "", "`PROVIDER/MODEL`")
	flags.StringVar(&o.create.Thinking, "thinking", "", "thinking `LEVEL`")
	flags.StringArrayVar(&o.extensions, "extension", nil, "`FILE` of an extension for the agent; may be repeated")
	flags.StringVar(&o.mcpConfig, "mcp-config", "", "`FILE` with the configuration of Pi's MCP adapter")
	flags.BoolVar(&o.keep, "keep", false, "keep the session when the agent has ended")
	flags.StringVar(&o.onExit, "on-exit", onExitTerminate, "what an interrupt does to the agent: terminate, or release to leave it running")
	inputFlag(cmd, &o.input)
	graceFlag(cmd, &o.grace)
	return cmd
}

func inputFlag(cmd *cobra.Command, value *string) {
	cmd.Flags().StringVar(value, "input", inputLines, "how standard input is cut: lines, or chunks as they come for an agent that does not read lines")
}

func checkInput(cmd *cobra.Command, value string) error {
	if value != inputLines && value != inputChunks {
		return usage(cmd, fmt.Sprintf("--input can't be %q", value))
	}
	return nil
}

func (o *runOptions) check(cmd *cobra.Command) error {
	if (o.create.Workspace == "") == (o.create.Path == "") {
		return usage(cmd, "give --workspace or --path, and not both")
	}
	if o.onExit != onExitTerminate && o.onExit != onExitRelease {
		return usage(cmd, fmt.Sprintf("--on-exit can't be %q", o.onExit))
	}
	if err := checkInput(cmd, o.input); err != nil {
		return err
	}
	return checkGrace(cmd, o.grace)
}

func (a *app) run(ctx context.Context, o runOptions) error {
	var err error
	if o.create.Attachments, err = readAttachments(o.extensions, o.mcpConfig); err != nil {
		return err
	}
	ints, stop := catchInterrupts(ctx)
	defer stop()
	info, socket, err := a.create(ints, o.create)
	if err != nil {
		return err
	}
	a.say(map[string]any{"session": info.Session}, "session %s", info.Session)
	r := a.newRelay(ints, info, socket)
	r.terminate = o.onExit == onExitTerminate
	r.grace = o.grace
	r.attach = client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromOldest, Client: clientName("run")}
	if ints.interrupted() {
		a.remove(ints.ctx, info.Session)
		return exitStatus(statusInterrupted)
	}
	if err := r.connect(ints.ctx); err != nil {
		a.remove(ints.ctx, info.Session)
		return err
	}
	defer r.startInput(o.input)()
	exit, err := r.run()
	if exit != nil && !o.keep {
		a.remove(ints.ctx, info.Session)
	}
	return r.report(exit, err)
}

// create creates the session. One interrupt does not end the wait: a session
// that was being made would be left behind.
func (a *app) create(ints *interrupts, o client.CreateOptions) (wire.SessionInfo, string, error) {
	b, err := a.dialBroker(ints.ctx)
	if err != nil {
		return wire.SessionInfo{}, "", err
	}
	defer b.Close()
	done := a.progress("starting the sandbox …")
	defer done()
	info, err := b.Create(ints.ctx, o)
	if err != nil && ints.ctx.Err() != nil {
		a.say(map[string]any{"left": true}, "left while a session was being made; find it with 'paseo-sandbox ls'")
		err = exitStatus(statusInterrupted)
	}
	return info, b.SessionSocket(info), err
}

// remove deletes a session, over a connection of its own: that of its creation
// may be long gone. What fails is told, and that the session stayed.
func (a *app) remove(ctx context.Context, session wire.SessionID) {
	b, err := a.dialBroker(ctx)
	if err == nil {
		defer b.Close()
		defer a.progress("deleting the session …")()
		err = b.Delete(ctx, session)
	}
	if err != nil {
		a.tell(err)
		a.say(map[string]any{"left": session}, "session %s was not deleted: 'paseo-sandbox stop --delete %s'", session, session)
	}
}

func clientName(command string) string {
	return fmt.Sprintf("paseo-sandbox %s, pid %d", command, os.Getpid())
}

func (a *app) newRelay(ints *interrupts, info wire.SessionInfo, socket string) *relay {
	return &relay{
		app: a, interrupts: ints, info: info, socket: socket, grace: defaultGrace,
		output: output{stdout: a.stdout, stderr: a.stderr}, stop: make(chan struct{}),
	}
}

// startInput begins to read standard input; the returned function ends it.
func (r *relay) startInput(how string) (end func()) {
	r.input = readInput(r.app.stdin, how == inputLines)
	return func() { close(r.input.quit) }
}

// report tells how the relay ended, and returns what the command returns.
func (r *relay) report(exit *wire.Exit, err error) error {
	id := r.info.Session
	switch {
	case exit == nil && r.interrupts.ctx.Err() != nil:
		r.app.say(map[string]any{"left": id}, "left; the session may still run: 'paseo-sandbox attach %s' or 'paseo-sandbox stop --delete %s'", id, id)
		return exitStatus(statusInterrupted)
	case exit == nil && err != nil:
		r.app.say(map[string]any{"left": id}, "the session was left: 'paseo-sandbox attach %s' or 'paseo-sandbox stop --delete %s'", id, id)
		return err
	case exit == nil:
		r.app.say(map[string]any{"detached": id}, "detached; the agent goes on: 'paseo-sandbox attach %s' or 'paseo-sandbox stop --delete %s'", id, id)
		return r.output.err
	case r.output.err != nil:
		return r.output.err
	case err != nil:
		r.app.tell(err)
	}
	if exit.Reason != wire.ReasonExited || exit.Signal != "" {
		r.app.say(map[string]any{"exit": view(exit)}, "the agent ended: %s", describeExit(exit))
	}
	if exit.Code == 0 && r.input != nil && r.input.refused > 0 {
		return &wire.Error{
			Code:    codeInputRefused,
			Message: fmt.Sprintf("%d inputs did not reach the agent", r.input.refused),
			Advice:  "each was reported when it was refused",
		}
	}
	if exit.Code != 0 {
		return exitStatus(exit.Code)
	}
	return nil
}
