package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/spf13/cobra"
)

// sessionRow is one session as JSON.
type sessionRow struct {
	Session    wire.SessionID `json:"session"`
	Deployment string         `json:"deployment"`
	Workspace  string         `json:"workspace"`
	Profile    string         `json:"profile"`
	State      wire.State     `json:"state"`
	CreatedAt  time.Time      `json:"createdAt"`
	SandboxPID uint64         `json:"sandboxPid,omitempty"`
	BridgePID  uint64         `json:"bridgePid,omitempty"`
	ExitCode   *int64         `json:"exitCode,omitempty"`
	ExitReason wire.Reason    `json:"exitReason,omitempty"`
	// VacantMillis is how long it has had no writer; Due is what its profile
	// will have done to it in DueMillis.
	HasWriter    bool     `json:"hasWriter"`
	VacantMillis uint64   `json:"vacantMillis,omitempty"`
	Due          wire.Due `json:"due,omitempty"`
	DueMillis    *uint64  `json:"dueMillis,omitempty"`
}

func row(i wire.SessionInfo) sessionRow {
	r := sessionRow{
		Session: i.Session, Deployment: i.Deployment, Workspace: i.Workspace, Profile: i.Profile, State: i.State,
		CreatedAt: time.UnixMilli(int64(i.CreatedAt)).UTC(), SandboxPID: i.SandboxPID, BridgePID: i.BridgePID,
		HasWriter: i.HasWriter, VacantMillis: i.VacantMillis, Due: i.Due,
	}
	if i.Due != "" {
		r.DueMillis = &i.DueMillis
	}
	if i.Exit != nil {
		r.ExitCode, r.ExitReason = &i.Exit.Code, i.Exit.Reason
	}
	return r
}

func (a *app) printSessions(w io.Writer, infos []wire.SessionInfo) error {
	all := make([]sessionRow, len(infos))
	table := [][]string{{"SESSION", "DEPLOYMENT", "WORKSPACE", "STATE", "AGE", "WRITER", "POLICY", "SANDBOX", "BRIDGE"}}
	for i, info := range infos {
		r := row(info)
		all[i] = r
		state := string(r.State)
		if r.ExitCode != nil {
			state = fmt.Sprintf("%s (%d, %s)", state, *r.ExitCode, r.ExitReason)
		}
		age := time.Since(r.CreatedAt).Round(time.Second).String()
		table = append(table, []string{string(r.Session), r.Deployment, r.Workspace, state, age, writer(info), policy(info), pid(r.SandboxPID), pid(r.BridgePID)})
	}
	return a.print(w, all, table)
}

func writer(i wire.SessionInfo) string {
	switch {
	case i.HasWriter:
		return "attached"
	case i.VacantMillis == 0:
		return "none"
	}
	return "none for " + span(i.VacantMillis)
}

// policy says what the session's profile will have done to it.
func policy(i wire.SessionInfo) string {
	word := map[wire.Due]string{wire.DueEnd: "ended", wire.DueDelete: "deleted"}[i.Due]
	switch {
	case word == "":
		return "-"
	case i.DueMillis == 0:
		return word + " now"
	}
	return word + " in " + span(i.DueMillis)
}

// span is a number of milliseconds in whole seconds, rounded up.
func span(millis uint64) string { return (time.Duration((millis+999)/1000) * time.Second).String() }

func pid(n uint64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatUint(n, 10)
}

// with runs f with a connection to the broker.
func (a *app) with(ctx context.Context, f func(*client.Broker) error) error {
	b, err := client.DialBroker(ctx, a.layout.AdminSocket())
	if err != nil {
		return err
	}
	defer b.Close()
	return f(b)
}

// find completes the beginning of an id.
func find(ctx context.Context, b *client.Broker, prefix string) (wire.SessionID, error) {
	all, err := b.List(ctx)
	if err != nil {
		return "", err
	}
	var found []wire.SessionID
	for _, i := range all {
		if strings.HasPrefix(string(i.Session), prefix) {
			found = append(found, i.Session)
		}
	}
	if len(found) != 1 || prefix == "" {
		return "", &wire.Error{Code: wire.CodeUnknownSession, Message: fmt.Sprintf("%d sessions have an id that begins with %q", len(found), prefix), Advice: "run broker-admin sessions"}
	}
	return found[0], nil
}

func (a *app) sessions() *cobra.Command {
	return &cobra.Command{
		Use: "sessions", Short: "List the sessions of all deployments", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(c.Context(), func(b *client.Broker) error {
				all, err := b.List(c.Context())
				if err != nil {
					return err
				}
				return a.printSessions(c.OutOrStdout(), all)
			})
		},
	}
}

func (a *app) terminate() *cobra.Command {
	var grace time.Duration
	c := &cobra.Command{
		Use: "terminate SESSION", Short: "End a session's agent: TERM, then KILL; what it wrote stays readable", Args: oneArg("session"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.with(c.Context(), func(b *client.Broker) error {
				id, err := find(c.Context(), b, args[0])
				if err != nil {
					return err
				}
				info, err := b.Terminate(c.Context(), id, grace)
				if err != nil {
					return err
				}
				return a.printSessions(c.OutOrStdout(), []wire.SessionInfo{info})
			})
		},
	}
	c.Flags().DurationVar(&grace, "grace", 10*time.Second, "how long TERM may take, at most 60s; 0 means KILL at once")
	return c
}

func (a *app) delete() *cobra.Command {
	return &cobra.Command{
		Use: "delete SESSION", Short: "End a session and remove everything of it, its output too", Args: oneArg("session"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.with(c.Context(), func(b *client.Broker) error {
				id, err := find(c.Context(), b, args[0])
				if err != nil {
					return err
				}
				if err := b.Delete(c.Context(), id); err != nil {
					return err
				}
				return a.print(c.OutOrStdout(), map[string]wire.SessionID{"deleted": id}, [][]string{{"deleted", string(id)}})
			})
		},
	}
}
