package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/artifacts"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/trusted"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/spf13/cobra"
)

// finding is what one check of the doctor says.
type finding struct {
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Advice string `json:"advice,omitempty"`
}

// check looks at one thing. It returns what it saw, or why it is not well, as
// a *wire.Error where there is advice.
type check struct {
	name string
	look func(context.Context, *patient) (string, error)
}

// patient is what the checks look at. The configuration is nil when it is not
// valid.
type patient struct {
	*app
	config   *registry.Config
	progress func(done, total int64)
}

var checks = []check{
	{"root", lookRoot},
	{"kernel", lookKernel},
	{"path resolution", lookOpenat2},
	{"mount cloning", lookOpenTree},
	{"namespaces", lookNamespaces},
	{"limits", lookLimits},
	{"process descriptors", lookPidfd},
	{"memory files", lookMemfd},
	{"configuration", lookConfig},
	{"folders", lookFolders},
	{"audit", lookAudit},
	{"spool", lookSpool},
	{"disk", lookDisk},
	{"disks of homes", lookHomes},
	{"runsc, bridge and rootfs", lookArtifacts},
	{"broker", lookBroker},
	{"leftovers", lookLeftovers},
}

func (a *app) doctor() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Check everything that the broker needs, and say what to do", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			p := &patient{app: a, progress: showProgress(c.ErrOrStderr())}
			findings, healthy := examine(c.Context(), p)
			table := make([][]string, 0, len(findings))
			for _, f := range findings {
				word := "ok"
				if !f.OK {
					word = "FAIL"
				}
				table = append(table, []string{word, f.Check, f.Detail})
				if f.Advice != "" {
					table = append(table, []string{"", "", "-> " + f.Advice})
				}
			}
			if err := a.print(c.OutOrStdout(), map[string]any{"ok": healthy, "checks": findings}, table); err != nil {
				return err
			}
			if !healthy {
				return errUnhealthy
			}
			return nil
		},
	}
}

func examine(ctx context.Context, p *patient) (findings []finding, healthy bool) {
	healthy = true
	for _, c := range checks {
		detail, err := c.look(ctx, p)
		f := finding{Check: c.name, OK: err == nil, Detail: detail}
		var e *wire.Error
		switch {
		case errors.As(err, &e):
			f.Detail, f.Advice = e.Message, e.Advice
			if e.Err != nil {
				f.Detail += ": " + e.Err.Error()
			}
		case err != nil:
			f.Detail = err.Error()
		}
		healthy = healthy && f.OK
		findings = append(findings, f)
	}
	return findings, healthy
}

// showProgress keeps one line up to date, on a terminal only.
func showProgress(w io.Writer) func(done, total int64) {
	f, ok := w.(*os.File)
	if st, err := os.Stat("/dev/null"); !ok || err != nil || !isTerminal(f, st) {
		return nil
	}
	next := time.Now().Add(time.Second)
	shown := false
	return func(done, total int64) {
		if now := time.Now(); now.After(next) && total > 0 {
			next, shown = now.Add(200*time.Millisecond), true
			fmt.Fprintf(w, "\rverifying the rootfs: %d %%", done*100/total)
		}
		if shown && done == total {
			fmt.Fprint(w, "\r\x1b[K")
		}
	}
}

func isTerminal(f *os.File, null os.FileInfo) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0 && !os.SameFile(st, null)
}

func lookConfig(_ context.Context, p *patient) (string, error) {
	config, err := registry.Load(p.layout)
	if err != nil {
		return "", err
	}
	p.config = config
	return fmt.Sprintf("valid, %d deployments", len(config.Deployments)), nil
}

var errNoConfig = errors.New("not checked, because the configuration is not valid")

func lookFolders(_ context.Context, p *patient) (string, error) {
	if p.config == nil {
		return "", errNoConfig
	}
	folders := p.layout.Folders(p.config.Containers())
	for _, f := range folders {
		if err := checkFolder(f); err != nil {
			return "", &wire.Error{Code: wire.CodeInvalidConfig, Message: "a folder is not as the broker makes it", Advice: "start the broker, which makes and mends its folders", Err: err}
		}
	}
	return fmt.Sprintf("%d, owned by root, with their modes", len(folders)), nil
}

func checkFolder(f layout.Folder) error {
	dir, err := trusted.OpenDir(f.Path)
	if err != nil {
		return err
	}
	defer dir.Close()
	st, err := dir.Stat()
	if err == nil && st.Mode().Perm() != f.Mode {
		err = fmt.Errorf("%s has the mode %04o, not %04o", f.Path, st.Mode().Perm(), f.Mode)
	}
	return err
}

func lookArtifacts(ctx context.Context, p *patient) (string, error) {
	if p.config == nil {
		return "", errNoConfig
	}
	set, err := artifacts.Open(ctx, p.config, p.progress)
	if err != nil {
		return "", err
	}
	return "verified in full", set.Close()
}

func lookBroker(ctx context.Context, p *patient) (string, error) {
	detail := ""
	err := p.with(ctx, func(b *client.Broker) error {
		all, err := b.List(ctx)
		detail = fmt.Sprintf("answers, %d sessions", len(all))
		return err
	})
	return detail, err
}

func lookLeftovers(_ context.Context, p *patient) (string, error) {
	traces, err := p.layout.Traces()
	if err != nil {
		return "", err
	}
	for _, t := range traces {
		if _, err := os.Lstat(p.layout.Records() + "/" + string(t.Session) + ".json"); err == nil {
			continue
		}
		// It may have been deleted since the look.
		if _, err := os.Lstat(t.Path); err == nil {
			return "", &wire.Error{Code: wire.CodeInternal, Message: fmt.Sprintf("%s belongs to a session without a record", t.Path), Advice: "run broker-admin gc, which lists and removes it; sessions go on"}
		}
	}
	return "none", nil
}
