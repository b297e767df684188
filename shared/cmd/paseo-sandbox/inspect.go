package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/spf13/cobra"
)

func (a *app) inspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "inspect SESSION",
		Short:   "Show what the broker and the bridge know of a session",
		Example: "  paseo-sandbox inspect 0198c0de\n  paseo-sandbox inspect --json 0198c0de | jq .bridge.nextSequence",
		Args:    arguments(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.inspect(cmd.Context(), args[0]) },
	}
}

func (a *app) inspect(ctx context.Context, name string) error {
	b, err := a.dialBroker(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	info, err := findSession(ctx, b, name)
	if err != nil {
		return err
	}
	status, bridgeErr := askBridge(ctx, b.SessionSocket(info))
	if a.json {
		keys := map[string]any{"broker": view(info), "bridge": nil}
		if bridgeErr == nil {
			keys["bridge"] = view(status)
		} else {
			keys["bridgeError"] = map[string]any{"code": wire.CodeOf(bridgeErr), "message": bridgeErr.Error()}
		}
		return a.printJSON(keys)
	}
	return a.printInspection(info, status, bridgeErr)
}

// bridgeTimeout bounds a question to a bridge, which may hang.
const bridgeTimeout = 10 * time.Second

func askBridge(ctx context.Context, socket string) (wire.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, bridgeTimeout)
	defer cancel()
	s, err := client.DialSession(ctx, socket)
	if err != nil {
		return wire.Status{}, err
	}
	defer s.Close()
	return s.Inspect(ctx)
}

func (a *app) printInspection(info wire.SessionInfo, s wire.Status, bridgeErr error) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	row("session", "%s", info.Session)
	row("state", "%s", describeState(info))
	row("deployment", "%s", info.Deployment)
	row("workspace", "%s", info.Workspace)
	row("profile", "%s", info.Profile)
	row("created", "%s", created(info).Format(time.DateTime))
	row("container", "%s", info.Container)
	row("sandbox", "pid %d", info.SandboxPID)
	row("bridge", "pid %d", info.BridgePID)
	if bridgeErr != nil {
		row("bridge's view", "none: %v", bridgeErr)
		return w.Flush()
	}
	writer := "none"
	if s.HasWriter {
		writer = fmt.Sprintf("%q, generation %d", s.Writer, s.Generation)
		if s.LeaseMillis > 0 {
			writer += fmt.Sprintf(", %d of %d ms of its lease left", s.LeaseRemainingMillis, s.LeaseMillis)
		}
	}
	row("writer", "%s; %d observers", writer, s.Observers)
	row("records", "%d to %d held, epoch %s", s.LostBefore, s.NextSequence-1, s.Epoch)
	row("output", "%d bytes on stdout, %d on stderr; %d of %d held", s.StdoutBytes, s.StderrBytes, s.SpoolBytes, s.SpoolLimit)
	row("input", "%d bytes accepted, %d delivered%s", s.InputAccepted, s.InputDelivered, when(s.InputClosed, "; closed"))
	if s.Overflow == wire.OverflowDropOldest {
		row("dropped", "%d records, %d bytes", s.DroppedRecords, s.DroppedBytes)
	}
	row("stalled", "%t%s", s.OutputStalled, when(s.OutputStalled, " ("+string(s.StallReason)+")"))
	for _, p := range s.Pending {
		row("waits for an answer", "%s (record %d)", p.RequestID, p.Sequence)
	}
	return w.Flush()
}

func when(yes bool, s string) string {
	if yes {
		return s
	}
	return ""
}
