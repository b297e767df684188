package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// ownersScript says what works inside; each line is one word and its outcome.
const ownersScript = `exec 2>/dev/null
umask 022
try() { if "${@:2}"; then echo "$1 yes"; else echo "$1 no"; fi; }
try id test "$(id -u):$(id -g)" = "$WANT"
try dir test "$(stat -c %u .)" = "${WANT%:*}"
try read cat mine
try write bash -c 'echo more >> mine'
try make bash -c 'echo made > made'
try mkdir mkdir sub
try run bash -c 'printf "#!/bin/sh\ntrue\n" > tool && chmod 755 tool && ./tool'
try readpublic cat public
try writepublic bash -c 'echo x >> public'
try readprivate cat private
try rootfile cat roots
try chown chown 0:0 mine
try setuid chmod 4755 mine
try link ln mine linked
`

// R36: files have the right owner, group and mode in both directions, for each
// user and mode of a workspace; what is others' is as closed as its mode says.
func TestOwners(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	s := startSmallSystem(t, harness.Options{
		Profiles: "[profiles.bash]\nkind = \"program\"\nframing = \"lines\"\ncommand = [\"/bin/bash\"]\n",
		Workspaces: []harness.Workspace{
			{Name: "private", UID: 1000, GID: 1000}, {Name: "group", UID: 1234, GID: 4321},
			{Name: "setgid", UID: 100000, GID: 100000}, {Name: "fixed", UID: 1234, GID: 1234, ReadOnly: true},
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), bytesTimeout)
	defer cancel()
	const closed = "writepublic no\nreadprivate no\nrootfile no\nchown no\n"
	const writable = "read yes\nwrite yes\nmake yes\nmkdir yes\nrun yes\nreadpublic yes\n" + closed + "setuid yes\nlink yes\n"
	for _, c := range []struct {
		name           string
		uid, gid       uint32
		mode           uint32
		dirGID, newGID uint32
		want           string
	}{
		{"private", 1000, 1000, 0o700, 1000, 1000, writable},
		{"group", 1234, 4321, 0o750, 4321, 4321, writable},
		{"setgid", 100000, 100000, syscall.S_ISGID | 0o775, 5000, 5000, writable},
		{"fixed", 1234, 1234, 0o755, 1234, 0, "read yes\nwrite no\nmake no\nmkdir no\nrun no\nreadpublic yes\n" + closed + "setuid no\nlink no\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := s.WorkspaceDir(c.name)
			for name, f := range map[string]struct {
				uid  int
				mode os.FileMode
			}{"mine": {int(c.uid), 0o640}, "public": {4242, 0o644}, "private": {4242, 0o600}, "roots": {0, 0o600}} {
				must(t, os.WriteFile(dir+"/"+name, []byte("text\n"), 0o600))
				must(t, os.Chown(dir+"/"+name, f.uid, int(c.dirGID)))
				must(t, os.Chmod(dir+"/"+name, f.mode))
			}
			must(t, os.Chown(dir, int(c.uid), int(c.dirGID)))
			must(t, syscall.Chmod(dir, c.mode))
			script := fmt.Sprintf("WANT=%d:%d\n%s", c.uid, c.gid, ownersScript)
			got := strings.ReplaceAll(runBash(ctx, t, s, c.name, script), "text\n", "")
			if want := "id yes\ndir yes\n" + c.want; got != want {
				t.Errorf("inside:\n%swant:\n%s", got, want)
			}
			if c.newGID == 0 {
				return
			}
			for name, mode := range map[string]uint32{"made": syscall.S_IFREG | 0o644, "sub": syscall.S_IFDIR | 0o755 | c.mode&syscall.S_ISGID, "tool": syscall.S_IFREG | 0o755} {
				var st syscall.Stat_t
				must(t, syscall.Lstat(dir+"/"+name, &st))
				if st.Uid != c.uid || st.Gid != c.newGID || st.Mode != mode {
					t.Errorf("on the host %s is %d:%d %o, want %d:%d %o", name, st.Uid, st.Gid, st.Mode, c.uid, c.newGID, mode)
				}
			}
		})
	}
}

// runBash runs a script in a session of its own and returns what it prints.
func runBash(ctx context.Context, t *testing.T, s *harness.System, workspace, script string) string {
	t.Helper()
	b, err := client.DialBroker(ctx, s.BrokerSocket())
	must(t, err)
	defer b.Close()
	info, err := b.Create(ctx, client.CreateOptions{Workspace: workspace, Profile: "bash"})
	must(t, err)
	session, err := client.DialSession(ctx, b.SessionSocket(info))
	must(t, err)
	defer session.Close()
	_, err = session.Attach(ctx, client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromOldest, Client: t.Name()})
	must(t, err)
	must(t, send(ctx, session, []byte(script)))
	got, _, err := collect(ctx, session, wire.StreamStdout)
	must(t, err)
	must(t, b.Delete(ctx, info.Session))
	return string(bytes.Join(got, nil))
}
