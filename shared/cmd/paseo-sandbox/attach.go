package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/spf13/cobra"
)

type attachOptions struct {
	observe, takeover, detachOnEOF bool
	from, cursor, cursorFile       string
	input                          string
}

func (a *app) attachCommand() *cobra.Command {
	var o attachOptions
	cmd := &cobra.Command{
		Use:   "attach SESSION",
		Short: "Join a session that runs",
		Long: `Join a session with standard input and output, as its writer or, with
--observe, to look on. Requests of the agent that wait for an answer are shown
again. What was written to standard output is acknowledged, and the bridge may
free it; an observer acknowledges nothing.

An interrupt detaches and leaves the session running; so does the end of
standard input with --detach-on-eof, where it otherwise ends the agent's.`,
		Example: `  paseo-sandbox attach 0198c0de
  paseo-sandbox attach --observe --from live 0198c0de
  paseo-sandbox attach --cursor-file ./cursor --takeover 0198c0de`,
		Args: arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			options, err := o.options(cmd)
			if err != nil {
				return err
			}
			return a.attachTo(cmd.Context(), args[0], o, options)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.observe, "observe", false, "only look on")
	flags.BoolVar(&o.takeover, "takeover", false, "replace the writer that is attached")
	flags.BoolVar(&o.detachOnEOF, "detach-on-eof", false, "leave the session running at the end of standard input")
	flags.StringVar(&o.from, "from", "", "where to begin: oldest (the default), live, or cursor")
	flags.StringVar(&o.cursor, "cursor", "", "begin after `EPOCH:SEQUENCE`")
	flags.StringVar(&o.cursorFile, "cursor-file", "", "begin after the cursor in `FILE` if it exists, and keep the place there")
	inputFlag(cmd, &o.input)
	return cmd
}

// options checks the flags against each other. The cursor file is read here,
// before anything is done.
func (o *attachOptions) options(cmd *cobra.Command) (client.AttachOptions, error) {
	result := client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromOldest, Takeover: o.takeover, Client: clientName("attach")}
	if o.observe {
		result.Mode = wire.ModeObserver
	}
	if err := checkInput(cmd, o.input); err != nil {
		return result, err
	}
	withCursor := o.cursor != "" || o.cursorFile != ""
	switch {
	case o.observe && o.takeover:
		return result, usage(cmd, "an observer takes nothing over: --observe and --takeover exclude each other")
	case o.cursor != "" && o.cursorFile != "":
		return result, usage(cmd, "--cursor and --cursor-file exclude each other")
	case o.from == string(wire.FromCursor) && !withCursor:
		return result, usage(cmd, "--from cursor needs --cursor or --cursor-file")
	case o.from != "" && o.from != string(wire.FromCursor) && o.cursor != "":
		return result, usage(cmd, "--cursor goes with --from cursor only")
	}
	switch from := wire.From(o.from); {
	case from == wire.FromOldest || from == wire.FromLive:
		result.From = from
		return result, nil
	case from != "" && from != wire.FromCursor:
		return result, usage(cmd, "--from is oldest, live or cursor")
	case !withCursor:
		return result, nil
	}
	cursor, err := o.readCursor()
	switch {
	case errors.Is(err, fs.ErrNotExist) && o.from == "":
		return result, nil
	case errors.Is(err, fs.ErrNotExist):
		return result, usage(cmd, fmt.Sprintf("the cursor file %s does not exist", o.cursorFile))
	}
	result.From, result.Cursor = wire.FromCursor, &cursor
	return result, err
}

func (o *attachOptions) readCursor() (wire.Cursor, error) {
	if o.cursorFile != "" {
		return client.LoadCursor(o.cursorFile)
	}
	return client.ParseCursor(o.cursor)
}

func (a *app) attachTo(ctx context.Context, name string, o attachOptions, options client.AttachOptions) error {
	ints, stop := catchInterrupts(ctx)
	defer stop()
	b, err := a.dialBroker(ints.ctx)
	if err != nil {
		return err
	}
	info, err := findSession(ints.ctx, b, name)
	b.Close()
	if err != nil {
		return err
	}
	r := a.newRelay(ints, info, b.SessionSocket(info))
	r.attach, r.cursorFile, r.detachOnEOF = options, o.cursorFile, o.detachOnEOF
	if err := r.connect(ints.ctx); err != nil {
		return err
	}
	a.say(map[string]any{"session": info.Session}, "attached to session %s", info.Session)
	if !o.observe {
		defer r.startInput(o.input)()
	}
	return r.report(r.run())
}
