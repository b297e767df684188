package registry

import (
	"os"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// R34: a deployment's sessions are bounded by their number and by what their
// spools may hold together.
func TestAdmits(t *testing.T) {
	for name, c := range map[string]struct {
		sessions int
		total    Size
		there    []uint64
		code     wire.Code
	}{
		"the first":              {2, 0, nil, ""},
		"the last by number":     {2, 0, []uint64{100}, ""},
		"one too many":           {2, 0, []uint64{100, 100}, wire.CodeTooManySessions},
		"the last by spool":      {9, 300, []uint64{100, 100}, ""},
		"a byte too much":        {9, 299, []uint64{100, 100}, wire.CodeDeploymentSpoolFull},
		"of a larger profile":    {9, 300, []uint64{201}, wire.CodeDeploymentSpoolFull},
		"lowered by a reload":    {9, 100, []uint64{100, 100}, wire.CodeDeploymentSpoolFull},
		"both: the number first": {1, 100, []uint64{100}, wire.CodeTooManySessions},
	} {
		d := Deployment{MaxSessions: c.sessions, SpoolTotal: c.total}
		err := d.Admits(&Profile{Spool: 100}, c.there)
		if (err == nil) != (c.code == "") || err != nil && wire.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// R35: periods are read as they are written, and nothing is done by default.
func TestPeriods(t *testing.T) {
	l := newEtc(t)
	file := l.Etc + "/deployments/local.toml"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]Period{"": 0, "\"never\"": 0, "\"1s\"": Period(time.Second), "\"72h\"": Period(72 * time.Hour), "\"1h30m\"": Period(90 * time.Minute)} {
		keys := ""
		if text != "" {
			keys = "end_abandoned = " + text + "\ndelete_ended = " + text
		}
		write(t, file, strings.Replace(string(b), `memory = "2GiB"`, keys, 1))
		c, err := Load(l)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		p := c.Deployments["local"].Profiles["cat"]
		if p.EndAbandoned != want || p.DeleteEnded != want {
			t.Errorf("%s: got %v and %v", text, p.EndAbandoned, p.DeleteEnded)
		}
		again := Period(1)
		if said, err := p.EndAbandoned.MarshalText(); err != nil || again.UnmarshalText(said) != nil || again != want {
			t.Errorf("%s is shown as %s, %v", text, said, err)
		}
	}
}
