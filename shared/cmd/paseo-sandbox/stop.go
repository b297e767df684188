package main

import (
	"context"
	"fmt"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/spf13/cobra"
)

// defaultGrace is how long an agent gets before the next harder step.
const defaultGrace = 5 * time.Second

func graceFlag(cmd *cobra.Command, grace *time.Duration) {
	cmd.Flags().DurationVar(grace, "grace", defaultGrace, "how long the agent gets before the next harder step, at most 1m")
}

func checkGrace(cmd *cobra.Command, grace time.Duration) error {
	if grace < 0 || grace > wire.MaxGraceMillis*time.Millisecond {
		return usage(cmd, fmt.Sprintf("a grace of %v is not between 0 and 1m", grace))
	}
	return nil
}

func (a *app) stopCommand() *cobra.Command {
	var grace time.Duration
	var remove bool
	cmd := &cobra.Command{
		Use:     "stop SESSION",
		Short:   "End a session's agent: TERM, then KILL",
		Long:    "End a session's agent: TERM, then KILL after the grace. What it printed can\nstill be read with attach, unless --delete removes the session.",
		Example: "  paseo-sandbox stop 0198c0de\n  paseo-sandbox stop --grace 30s --delete 0198c0de",
		Args:    arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkGrace(cmd, grace); err != nil {
				return err
			}
			return a.stop(cmd.Context(), args[0], grace, remove)
		},
	}
	graceFlag(cmd, &grace)
	cmd.Flags().BoolVar(&remove, "delete", false, "remove the session and what it left")
	return cmd
}

func (a *app) stop(ctx context.Context, name string, grace time.Duration, remove bool) error {
	b, err := a.dialBroker(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	info, err := findSession(ctx, b, name)
	if err != nil {
		return err
	}
	if info.Exit == nil {
		done := a.progress("stopping the agent …")
		info, err = b.Terminate(ctx, info.Session, grace)
		done()
		if err != nil {
			return err
		}
	}
	if remove {
		if err := b.Delete(ctx, info.Session); err != nil {
			return err
		}
	}
	if a.json {
		return a.printJSON(map[string]any{"session": view(info), "deleted": remove})
	}
	_, err = fmt.Fprintf(a.stdout, "%s: %s%s\n", info.Session, describeState(info), when(remove, "; deleted"))
	return err
}
