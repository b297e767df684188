package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// hostileTimeout bounds one hostile agent's life.
const hostileTimeout = 4 * time.Minute

const probeProfiles = `
[profiles.probe]
kind = "program"
framing = "lines"
command = ["/workspace/probe"]
`

// hostile is a probe that runs in a sandbox.
type hostile struct {
	session *client.Session
	info    wire.SessionInfo
	asked   int
}

func startHostile(ctx context.Context, t *testing.T, s *harness.System, workspace string) *hostile {
	t.Helper()
	b, err := client.DialBroker(ctx, s.BrokerSocket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	info, err := b.Create(ctx, client.CreateOptions{Workspace: workspace, Profile: "probe"})
	if err != nil {
		t.Fatal(err)
	}
	session, err := client.DialSession(ctx, b.SessionSocket(info))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	if _, err := session.Attach(ctx, client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromOldest, Client: t.Name()}); err != nil {
		t.Fatal(err)
	}
	return &hostile{session: session, info: info}
}

// ask lets the probe do one thing.
func (h *hostile) ask(ctx context.Context, t *testing.T, do string, args ...string) map[string]string {
	t.Helper()
	line, err := json.Marshal(map[string]any{"do": do, "args": args})
	if err != nil {
		t.Fatal(err)
	}
	h.asked++
	if _, err := h.session.Input(ctx, fmt.Sprint("ask-", h.asked), append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	r, err := h.session.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var answers map[string]string
	if err := json.Unmarshal(r.Data, &answers); err != nil || r.Stream != wire.StreamStdout {
		t.Fatalf("asked to %s, stream %d says %.400q: %v", do, r.Stream, r.Data, err)
	}
	return answers
}

// compare fails for each answer that is not the expected one, and for each
// that is missing on either side.
func compare(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, w := range want {
		if g, ok := got[name]; !ok || g != w {
			t.Errorf("%s:\n%s\nwant:\n%s", name, g, w)
		}
	}
	for name, g := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("nobody expects %s: %s", name, g)
		}
	}
}

// same is a table in which all have the same answer.
func same(answer string, names ...string) map[string]string {
	table := map[string]string{}
	for _, n := range names {
		table[n] = answer
	}
	return table
}

// merge puts tables together.
func merge(tables ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, table := range tables {
		for k, v := range table {
			all[k] = v
		}
	}
	return all
}

// secretOfTheHost makes a file that everybody on the host may read.
func secretOfTheHost(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pss-secret-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "secret")
	if err := os.WriteFile(file, []byte("secret of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// checkHostFolder looks at what an agent left in a workspace: nothing is
// root's but what the test put there, and nothing is a device.
func checkHostFolder(t *testing.T, dir string, ours map[string]bool) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		kind := st.Mode & unix.S_IFMT
		if name := filepath.Base(path); ours[name] || path == dir {
			return nil
		}
		if st.Uid == 0 || st.Gid == 0 || kind == unix.S_IFCHR || kind == unix.S_IFBLK || kind == unix.S_IFSOCK || kind == unix.S_IFIFO {
			t.Errorf("the agent left %s: mode %o, owner %d:%d", path, st.Mode, st.Uid, st.Gid)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
