package main

import (
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"github.com/spf13/cobra"
)

func (a *app) reload() *cobra.Command {
	return &cobra.Command{
		Use: "reload", Short: "Make the broker read its configuration again; sessions go on", Args: noArgs,
		Long: "Make the broker read its configuration again. Sessions go on with what they were made with. After an error the configuration before is still in force.",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(c.Context(), func(b *client.Broker) error {
				if err := b.Reload(c.Context()); err != nil {
					return err
				}
				return a.print(c.OutOrStdout(), map[string]bool{"reloaded": true}, [][]string{{"reloaded"}})
			})
		},
	}
}
