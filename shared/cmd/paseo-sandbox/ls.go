package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) lsCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "List the sessions of the deployment",
		Example: "  paseo-sandbox ls\n  paseo-sandbox ls --json | jq -r '.[].session'",
		Args:    arguments(0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.ls(cmd) },
	}
}

func (a *app) ls(cmd *cobra.Command) error {
	ctx := cmd.Context()
	b, err := a.dialBroker(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	sessions, err := b.List(ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(view(sessions))
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SESSION\tWORKSPACE\tPROFILE\tCREATED\tSTATE")
	for _, info := range sessions {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", info.Session, info.Workspace, info.Profile, created(info).Format(time.DateTime), describeState(info))
	}
	return w.Flush()
}
