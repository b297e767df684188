package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/client/pi"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/spf13/cobra"
)

// Bounds of --timeout.
const (
	defaultCancelTimeout = 30 * time.Second
	maxCancelTimeout     = time.Hour
)

func (a *app) cancelCommand() *cobra.Command {
	var timeout time.Duration
	var takeover bool
	cmd := &cobra.Command{
		Use:   "cancel SESSION",
		Short: "Cancel what Pi is doing, and leave it running",
		Long: `Cancel what Pi is doing, whoever asked for it: its turn, the commands that it
runs, the messages that wait for their turn and the questions that wait for an
answer. Pi goes on to run and can be given something else; what it printed can
still be read with attach.

A program that is attached as the writer has to cancel by itself, unless
--takeover takes its place.`,
		Example: "  paseo-sandbox cancel 0198c0de\n  paseo-sandbox cancel --takeover --timeout 2m 0198c0de",
		Args:    arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout <= 0 || timeout > maxCancelTimeout {
				return usage(cmd, fmt.Sprintf("a timeout of %v is not between 0 and %v", timeout, maxCancelTimeout))
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return a.cancel(ctx, args[0], takeover)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", defaultCancelTimeout, "how long it may take until Pi does nothing, at most 1h")
	cmd.Flags().BoolVar(&takeover, "takeover", false, "replace the writer that is attached")
	return cmd
}

func (a *app) cancel(ctx context.Context, name string, takeover bool) error {
	b, err := a.dialBroker(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	info, err := findSession(ctx, b, name)
	if err != nil {
		return err
	}
	done := a.progress("cancelling …")
	defer done()
	s, err := client.DialSession(ctx, b.SessionSocket(info))
	if err != nil {
		return err
	}
	defer s.Close()
	// From live, and without an ack: nothing that the daemon has yet to read is
	// freed.
	if _, err := s.Attach(ctx, client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromLive, Takeover: takeover, Client: clientName("cancel")}); err != nil {
		return err
	}
	c, err := pi.CancelTurn(ctx, s, pi.CancelOptions{ID: "cancel-" + rand.Text()})
	if err != nil {
		return err
	}
	if err := s.Release(ctx); err != nil {
		return err
	}
	done()
	if a.json {
		return a.printJSON(map[string]any{"session": info.Session, "turn": c.Turn, "dialogs": c.Dialogs, "bash": c.Bash, "queued": c.Queued})
	}
	_, err = fmt.Fprintf(a.stdout, "%s: %s\n", info.Session, describeCancelled(c))
	return err
}

func describeCancelled(c pi.Cancelled) string {
	var parts []string
	if c.Turn {
		parts = append(parts, "its turn")
	}
	if c.Bash > 0 {
		parts = append(parts, count(c.Bash, "command"))
	}
	if c.Dialogs > 0 {
		parts = append(parts, count(c.Dialogs, "question"))
	}
	text := "it did nothing"
	if len(parts) > 0 {
		text = "cancelled " + strings.Join(parts, ", ")
	}
	return text + when(c.Queued > 0, "; waiting for the next turn: "+count(c.Queued, "message"))
}

func count(n int, what string) string { return fmt.Sprintf("%d %s", n, what+when(n != 1, "s")) }
