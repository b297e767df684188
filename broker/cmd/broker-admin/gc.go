package main

import (
	"context"
	"slices"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/rootfs"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/spf13/cobra"
)

// leftover is one finding as JSON.
type leftover struct {
	Kind    string         `json:"kind"`
	Name    string         `json:"name"`
	Session wire.SessionID `json:"session,omitempty"`
	Reason  wire.Code      `json:"reason"`
	// AgeMillis is left out where it is not known.
	AgeMillis uint64 `json:"ageMillis,omitempty"`
	// Removed is false in a dry run, and with Failed.
	Removed bool      `json:"removed"`
	Failed  wire.Code `json:"failed,omitempty"`
}

const gcLong = `Remove what sessions have left behind, and do at once what policies have due.

Found are sessions that are past end_abandoned or delete_ended of their profile
or were released after their end, sessions that were half made or half deleted,
and whatever bears the id of a session without a record: mounts, sockets,
bundles, spools, homes, loop devices, cgroups, containers, processes; also what
imports of root file systems have left. Sessions that are in order are not
touched.

An abandoned session is ended and stays readable; the others are removed for
good, with their output. It can be repeated, and interrupted, at any time.
--dry-run only lists.

Exit status 1 means that something could not be removed; the broker's log says
what is in the way.`

func (a *app) gc() *cobra.Command {
	dry := false
	c := &cobra.Command{
		Use: "gc", Short: "Remove what sessions have left behind, or only list it", Long: gcLong, Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			found, err := a.collect(c.Context(), dry)
			if err != nil {
				return err
			}
			table := [][]string{{"KIND", "NAME", "AGE", "REASON", ""}}
			for _, f := range found {
				word, age := "removed", "-"
				switch {
				case f.Failed != "":
					word = "FAILED: " + string(f.Failed)
				case dry:
					word = "found"
				case f.Kind == string(wire.FoundSession) && f.Reason == wire.WhyAbandoned:
					word = "ended"
				}
				if f.AgeMillis > 0 {
					age = span(f.AgeMillis)
				}
				table = append(table, []string{f.Kind, f.Name, age, string(f.Reason), word})
			}
			if len(found) == 0 {
				table = [][]string{{"nothing is left behind"}}
			}
			if err := a.print(c.OutOrStdout(), found, table); err != nil {
				return err
			}
			if slices.ContainsFunc(found, func(f leftover) bool { return f.Failed != "" }) {
				return errUnhealthy
			}
			return nil
		},
	}
	c.Flags().BoolVar(&dry, "dry-run", false, "change nothing, and list what would be removed")
	return c
}

// collect asks the broker, which knows what is in use, and looks through the
// store of root file systems, which is no business of the broker's.
func (a *app) collect(ctx context.Context, dry bool) ([]leftover, error) {
	all := []leftover{}
	err := a.with(ctx, func(b *client.Broker) error {
		found, err := b.Collect(ctx, dry)
		for _, f := range found {
			all = append(all, leftover{string(f.Kind), f.Name, f.Session, f.Reason, f.AgeMillis, !dry && f.Failed == "", f.Failed})
		}
		return err
	})
	if wire.CodeOf(err) == wire.CodeBrokerUnreachable {
		return nil, &wire.Error{
			Code: wire.CodeBrokerUnreachable, Message: "no broker runs here, and only it knows what is in use",
			Advice: "start it: when it starts, it removes what earlier ones have left; then run this again for the rest", Err: err,
		}
	}
	if err != nil {
		return nil, err
	}
	works, err := rootfs.At(a.layout).Sweep(dry)
	if err != nil {
		return nil, err
	}
	for _, w := range works {
		f := leftover{Kind: "rootfs_work", Name: w.Path, Reason: "interrupted", AgeMillis: uint64(max(0, time.Since(w.Changed).Milliseconds())), Removed: !dry}
		if w.Err != nil {
			f.Removed, f.Failed = false, wire.CodeInternal
		}
		all = append(all, f)
	}
	return all, nil
}
