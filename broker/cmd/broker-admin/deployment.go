package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/spf13/cobra"
)

// deploymentView is a deployment as JSON.
type deploymentView struct {
	ID             string                         `json:"id"`
	Socket         string                         `json:"socket"`
	Container      bool                           `json:"container"`
	PeerUIDs       []uint32                       `json:"peerUids"`
	MaxSessions    int                            `json:"maxSessions"`
	SpoolTotal     registry.Size                  `json:"spoolTotal,omitempty"`
	DefaultProfile string                         `json:"defaultProfile"`
	Workspaces     map[string]*registry.Workspace `json:"workspaces"`
	Profiles       map[string]*registry.Profile   `json:"profiles"`
}

func (a *app) view(d *registry.Deployment) deploymentView {
	return deploymentView{
		ID: d.ID, Socket: a.layout.BrokerSocket(d.ID, d.Container), Container: d.Container, PeerUIDs: d.PeerUIDs,
		MaxSessions: d.MaxSessions, SpoolTotal: d.SpoolTotal, DefaultProfile: d.DefaultProfile, Workspaces: d.Workspaces, Profiles: d.Profiles,
	}
}

const fromFiles = "This is what the files say; a running broker has read them when it started or was last told to reload."

func (a *app) deploymentList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the registered deployments", Long: "List the registered deployments. " + fromFiles, Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := registry.Load(a.layout)
			if err != nil {
				return err
			}
			views := []deploymentView{}
			table := [][]string{{"DEPLOYMENT", "USERS", "WORKSPACES", "PROFILES", "SOCKET"}}
			for _, id := range config.IDs() {
				v := a.view(config.Deployments[id])
				views = append(views, v)
				table = append(table, []string{id, uids(v.PeerUIDs), names(v.Workspaces), names(v.Profiles), v.Socket})
			}
			return a.print(c.OutOrStdout(), views, table)
		},
	}
}

func (a *app) deploymentShow() *cobra.Command {
	return &cobra.Command{
		Use: "show DEPLOYMENT", Short: "Show one deployment with its limits", Long: "Show one deployment with its limits. " + fromFiles, Args: oneArg("deployment"),
		RunE: func(c *cobra.Command, args []string) error {
			config, err := registry.Load(a.layout)
			if err != nil {
				return err
			}
			d := config.Deployments[args[0]]
			if d == nil {
				return &wire.Error{Code: wire.CodeUnknownDeployment, Message: fmt.Sprintf("there is no deployment %q", args[0]), Advice: "run broker-admin deployment list"}
			}
			v := a.view(d)
			return a.print(c.OutOrStdout(), v, details(v))
		},
	}
}

func details(v deploymentView) [][]string {
	rows := [][]string{
		{"deployment", v.ID}, {"socket", v.Socket}, {"in a container", fmt.Sprint(v.Container)}, {"users", uids(v.PeerUIDs)},
		{"sessions at most", fmt.Sprint(v.MaxSessions)}, {"their spools at most", spools(v)}, {"default profile", v.DefaultProfile},
	}
	for _, name := range slices.Sorted(maps.Keys(v.Workspaces)) {
		w := v.Workspaces[name]
		mode := "read and write"
		if w.ReadOnly {
			mode = "read only"
		}
		rows = append(rows, []string{"workspace " + name, fmt.Sprintf("%s, as %d:%d, %s", w.Root, w.UID, w.GID, mode)})
	}
	for _, name := range slices.Sorted(maps.Keys(v.Profiles)) {
		p := v.Profiles[name]
		what := p.Kind
		if p.Kind == registry.KindProgram {
			what = fmt.Sprintf("%q, framing %s", p.Command, p.Framing)
		}
		cpus := "all"
		if p.CPUs > 0 {
			cpus = fmt.Sprint(p.CPUs)
		}
		rows = append(rows, []string{"profile " + name, fmt.Sprintf("%s; memory %s, cpus %s, pids %d, open files %d, /tmp %s, home %s, spool %s, record %s, input %s; end abandoned: %s, delete ended: %s",
			what, size(p.Memory), cpus, p.PIDs, p.OpenFiles, size(p.Tmp), home(p.State), size(p.Spool), size(p.MaxRecord), size(p.MaxInput), p.EndAbandoned, p.DeleteEnded)})
	}
	return rows
}

// spools is what the output of all sessions may take on the disk: by
// spool_total, or what comes of the number of sessions.
func spools(v deploymentView) string {
	if v.SpoolTotal > 0 {
		return size(v.SpoolTotal)
	}
	return size(mostSpooled(v.MaxSessions, v.Profiles)) + " (no spool_total)"
}

func mostSpooled(sessions int, profiles map[string]*registry.Profile) registry.Size {
	var most registry.Size
	for _, p := range profiles {
		most = max(most, p.Spool)
	}
	return registry.Size(sessions) * most
}

func home(s registry.StateSize) string {
	if s == registry.Unlimited {
		return "unlimited"
	}
	return size(registry.Size(s))
}

func size(s registry.Size) string {
	switch {
	case s >= registry.GiB && s%registry.GiB == 0:
		return fmt.Sprintf("%d GiB", s/registry.GiB)
	case s >= registry.MiB && s%registry.MiB == 0:
		return fmt.Sprintf("%d MiB", s/registry.MiB)
	}
	return fmt.Sprintf("%d B", s)
}

func uids(all []uint32) string {
	words := make([]string, len(all))
	for i, uid := range all {
		words[i] = fmt.Sprint(uid)
	}
	return strings.Join(words, ",")
}

func names[T any](m map[string]T) string { return strings.Join(slices.Sorted(maps.Keys(m)), ",") }
