package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit/trail"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/trusted"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// followEvery is the time between two looks for new lines.
const followEvery = 200 * time.Millisecond

// auditQuery says which lines are shown.
type auditQuery struct {
	deployment, session string
	since               time.Time
	denied, follow      bool
	last                int
}

func (a *app) audit() *cobra.Command {
	q := auditQuery{}
	since := ""
	c := &cobra.Command{
		Use: "audit", Short: "Show what the broker decided, and what happened to sessions", Args: noArgs,
		Long: "Show what the broker decided, and what happened to sessions, from the audit's file and its\npredecessors, the oldest first. A line that is not as the broker writes it is shown as BROKEN,\nwhatever is asked for. With --json each line is one JSON object; a broken one has the key broken.",
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if q.since, err = parseSince(since, time.Now()); err != nil {
				return err
			}
			if q.last < 0 {
				return fmt.Errorf("%w: -n is a number of lines", errUsage)
			}
			config, err := registry.Load(a.layout)
			if err != nil {
				return err
			}
			if config.Audit.File == "" {
				return &wire.Error{
					Code: wire.CodeAuditUnavailable, Message: "the audit has no file of its own, it is part of the broker's log",
					Advice: "run journalctl -u paseo-sandbox-broker -g audit: to see it, or set file in [audit] of broker.toml",
				}
			}
			r, err := trail.Open(config.Audit.File)
			if err != nil {
				return err
			}
			defer r.Close()
			return q.show(c.Context(), r, a.auditPrinter(c.OutOrStdout()))
		},
	}
	f := c.Flags()
	f.BoolVarP(&q.follow, "follow", "f", false, "go on with lines as they are written, until Ctrl-C")
	f.StringVar(&since, "since", "", "from this time on: 2026-01-31, 2026-01-31T12:00:00Z, or 90m ago")
	f.StringVar(&q.deployment, "deployment", "", "of this deployment; (admin) is the operator's socket")
	f.StringVar(&q.session, "session", "", "of sessions whose id begins so")
	f.BoolVar(&q.denied, "denied", false, "what was denied or failed, and how much of it was dropped")
	f.IntVarP(&q.last, "lines", "n", 0, "the last so many of those lines; 0 means all")
	return c
}

func parseSince(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(s); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if at, err := time.Parse(layout, s); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%w: --since %q is no time such as 2026-01-31, 2026-01-31T12:00:00Z or 90m", errUsage, s)
}

// wants reports whether the line is one of those asked for. What is broken is,
// for nobody knows what it was.
func (q auditQuery) wants(l trail.Line) bool {
	e := l.Entry
	return l.Err != nil || !e.Time.Before(q.since) &&
		(q.deployment == "" || e.Deployment == q.deployment) && strings.HasPrefix(e.Session, q.session) &&
		(!q.denied || e.Decision == audit.Deny || e.Decision == audit.Failed || e.Operation == audit.OperationDropped)
}

// show prints the lines that there are, and then those that come until the
// context ends.
func (q auditQuery) show(ctx context.Context, r *trail.Reader, print func(trail.Line) error) error {
	var kept []trail.Line
	present := true // still reading what was there at the start
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		l, err := r.Next()
		switch {
		case err == nil && !q.wants(l):
		case err == nil && present && q.last > 0:
			if kept = append(kept, l); len(kept) > q.last {
				kept = kept[1:]
			}
		case err == nil:
			if err := print(l); err != nil {
				return err
			}
		case !errors.Is(err, io.EOF):
			return err
		default:
			for _, l := range kept {
				if err := print(l); err != nil {
					return err
				}
			}
			kept, present = nil, false
			if !q.follow {
				if l, ok := r.Rest(); ok {
					return print(l)
				}
				return nil
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// auditPrinter prints one line after the other, as it comes: no columns are
// wide enough for all.
func (a *app) auditPrinter(w io.Writer) func(trail.Line) error {
	if a.json {
		return func(l trail.Line) error {
			if l.Err == nil {
				_, err := fmt.Fprintf(w, "%s\n", l.Text)
				return err
			}
			return json.NewEncoder(w).Encode(map[string]string{"broken": string(l.Text), "why": l.Err.Error()})
		}
	}
	const form = "%-27s  %-10s  %-8s  %-14s  %-16s  %-32s  %-6s  %s\n"
	header := true
	return func(l trail.Line) error {
		if header {
			header = false
			fmt.Fprintf(w, form, "TIME", "USER", "PID", "DEPLOYMENT", "OPERATION", "SESSION", "", "RESULT")
		}
		if l.Err != nil {
			_, err := fmt.Fprintf(w, "BROKEN  %q: %v\n", l.Text, l.Err)
			return err
		}
		e := l.Entry
		_, err := fmt.Fprintf(w, form, e.Time.Format("2006-01-02T15:04:05.000000Z"), user(e.UID), fmt.Sprint(e.PID),
			e.Deployment, e.Operation, dash(e.Session), e.Decision, result(e))
		return err
	}
}

// result is the code with whatever else there is to say.
func result(e audit.Entry) string {
	words := []string{e.Code}
	if e.Count > 0 {
		words = append(words, fmt.Sprintf("(%d entries)", e.Count))
	}
	if e.Workspace != "" || e.Profile != "" {
		words = append(words, dash(e.Workspace)+"/"+dash(e.Profile))
	}
	if e.Duration > 0 {
		words = append(words, e.Duration.String())
	}
	return strings.Join(words, " ")
}

func user(uid uint32) string {
	if uid == 1<<32-1 {
		return "nobody"
	}
	return fmt.Sprint(uid)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// lookAudit checks the place of the audit's file without writing to it.
func lookAudit(_ context.Context, p *patient) (string, error) {
	if p.config == nil {
		return "", errNoConfig
	}
	c := p.config.Audit
	if c.File == "" {
		return "part of the broker's log", nil
	}
	path := filepath.Dir(c.File)
	dir, err := trusted.OpenDir(path)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	f, err := trusted.OpenFile(dir, filepath.Base(c.File))
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return "", err
	default:
		st, err := f.Stat()
		f.Close()
		if err != nil {
			return "", err
		}
		if st.Mode().Perm()&0o077 != 0 {
			return "", &wire.Error{Code: wire.CodeInvalidConfig, Message: fmt.Sprintf("%s has the mode %04o", c.File, st.Mode().Perm()), Advice: "chmod it to 0600"}
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return "", err
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return "", &wire.Error{Code: wire.CodeAuditUnavailable, Message: path + " is on a file system that can't be written", Advice: "mount it writable: no session is made meanwhile"}
	}
	// Of what is left, root may have all.
	if free := st.Bfree * uint64(st.Bsize); free < uint64(c.MaxSize) {
		return "", &wire.Error{Code: wire.CodeAuditUnavailable, Message: fmt.Sprintf("%s has %d KiB free, one file may need %d", path, free>>10, c.MaxSize>>10), Advice: "make room: no session is made while the audit can't be written"}
	}
	return fmt.Sprintf("%s, at most %d files of %s", c.File, c.Files, size(c.MaxSize)), nil
}
