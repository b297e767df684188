package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

const otherDeployment = `peer_uids = [0]
default_profile = "stdout"
[profiles.stdout]
kind = "program"
framing = "lines"
command = ["/bin/cat"]
[workspaces.private]
root = "ROOT"
client_path = "/private"
subfolders = true
uid = 1000
gid = 1000
`

// startTwo starts a broker that has a second deployment, "other".
func startTwo(t *testing.T) (s *harness.System, otherSocket string) {
	t.Helper()
	s, err := harness.New(harness.Options{
		Bin: programs(t), PeerUIDs: []uint32{0}, Profiles: echoProfiles,
		Workspaces: []harness.Workspace{
			{Name: "open", UID: 1000, GID: 1000, Subfolders: true, ClientPath: "/workspace"},
			{Name: "closed", UID: 1000, GID: 1000, ClientPath: "/workspace/closed"},
			{Name: "deleted", UID: 1000, GID: 1000}, {Name: "linked", UID: 1000, GID: 1000}, {Name: "filed", UID: 1000, GID: 1000},
			{Name: "covered", UID: 1000, GID: 1000}, {Name: "alias", UID: 1000, GID: 1000},
		},
	})
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the broker's log ends with:\n%s", s.LogTail())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	private := filepath.Join(s.Prefix, "private")
	must(t, os.Mkdir(private, 0o755))
	other := filepath.Join(filepath.Dir(s.DeploymentFile()), "other.toml")
	must(t, os.WriteFile(other, []byte(strings.Replace(otherDeployment, "ROOT", private, 1)), 0o600))
	must(t, s.StartBroker(t.Context()))
	return s, filepath.Join(s.Prefix, "run", "d", "other", "broker.sock")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rawCreate is a create message that our own encoder may refuse; each field is
// left out when it is "-" (RFC 8949, section 4.2.1: keys by length, then value).
func rawCreate(path, folder, workspace string) []byte {
	text := func(s string) string {
		switch n := len(s); {
		case n < 24:
			return string([]byte{0x60 + byte(n)}) + s
		case n < 256:
			return string([]byte{0x78, byte(n)}) + s
		default:
			return string([]byte{0x79, byte(n >> 8), byte(n)}) + s
		}
	}
	pairs, body := 0, ""
	for _, kv := range [][2]string{{"path", path}, {"type", "create"}, {"folder", folder}, {"workspace", workspace}} {
		if kv[1] != "-" {
			pairs++
			body += text(kv[0]) + text(kv[1])
		}
	}
	return frame(string([]byte{0xa1 + byte(pairs)}) + text("id") + "\x01" + body)
}

// harm makes the workspaces what the table below says they are.
func harm(t *testing.T, s *harness.System) {
	t.Helper()
	open := s.WorkspaceDir("open")
	must(t, os.MkdirAll(open+"/a/b/c", 0o755))
	must(t, os.MkdirAll(open+"/m/n/o", 0o755))
	must(t, os.WriteFile(open+"/file", nil, 0o644))
	for _, err := range []error{
		os.Symlink("/etc", open+"/l0"), os.Symlink("../b", open+"/a/l1"), os.Symlink(".", open+"/a/b/l2"),
		os.RemoveAll(s.WorkspaceDir("deleted")),
		os.RemoveAll(s.WorkspaceDir("linked")), os.Symlink("/etc", s.WorkspaceDir("linked")),
		os.RemoveAll(s.WorkspaceDir("filed")), os.WriteFile(s.WorkspaceDir("filed"), nil, 0o644),
		os.Mkdir(s.WorkspaceDir("covered")+"/sub", 0o755),
	} {
		must(t, err)
	}
	for at, from := range map[string]string{
		open + "/m/n": open + "/a", s.WorkspaceDir("covered") + "/sub": open + "/a", s.WorkspaceDir("alias"): filepath.Join(s.Prefix, "var", "state"),
	} {
		must(t, unix.Mount(from, at, "", unix.MS_BIND, ""))
		t.Cleanup(func() { must(t, unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)) })
	}
}

// R10 R14 R19: over the socket, each way to name a place that is not the
// client's is refused with a code of its own and an audit line, tells no path
// of the host, and leaves nothing.
func TestPathsAreRefused(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	s, _ := startTwo(t)
	harm(t, s)
	long := strings.Repeat("x", wire.MaxPathElement+1)
	for name, c := range map[string]struct {
		path, folder, workspace string
		code                    wire.Code
	}{
		"dot dot":                     {"-", "..", "open", wire.CodePathParent},
		"dot dot in the middle":       {"-", "a/../a", "open", wire.CodePathParent},
		"dot dot of a path":           {"/workspace/../etc", "-", "-", wire.CodePathParent},
		"dot dot below a path":        {"/workspace", "../etc", "-", wire.CodePathParent},
		"absolute folder":             {"-", "/etc", "open", wire.CodePathAbsolute},
		"relative path":               {"workspace", "-", "-", wire.CodePathRelative},
		"empty":                       {"-", "-", "-", wire.CodeInvalidArgument},
		"both":                        {"/workspace", "-", "open", wire.CodeInvalidArgument},
		"NUL":                         {"-", "a\x00b", "open", wire.CodePathNUL},
		"NUL in a path":               {"/workspace\x00", "-", "-", wire.CodePathNUL},
		"long element":                {"-", long, "open", wire.CodePathTooLong},
		"long folder":                 {"-", strings.Repeat("x/", wire.MaxPath/2) + "x", "open", wire.CodePathTooLong},
		"long path":                   {strings.Repeat("/x", 1000), "-", "-", wire.CodePathTooLong},
		"long together":               {"/workspace" + strings.Repeat("/x", 400), strings.Repeat("x/", 400) + "x", "-", wire.CodePathTooLong},
		"slash at the end":            {"-", "a/", "open", wire.CodePathNotClean},
		"slash at the end of a path":  {"/workspace/", "-", "-", wire.CodePathNotClean},
		"the root":                    {"/", "-", "-", wire.CodePathNotClean},
		"two slashes":                 {"-", "a//b", "open", wire.CodePathNotClean},
		"dot":                         {"-", ".", "open", wire.CodePathNotClean},
		"not UTF-8":                   {"-", "\xff\xfe", "open", wire.CodeInvalidMessage},
		"a link":                      {"-", "l0", "open", wire.CodePathSymlink},
		"below a link":                {"-", "l0/ssh", "open", wire.CodePathSymlink},
		"a link, deeper":              {"-", "a/l1", "open", wire.CodePathSymlink},
		"below it":                    {"-", "a/l1/c", "open", wire.CodePathSymlink},
		"a link, deepest":             {"-", "a/b/l2/c", "open", wire.CodePathSymlink},
		"a link by a path":            {"/workspace/l0", "-", "-", wire.CodePathSymlink},
		"missing":                     {"-", "none", "open", wire.CodePathMissing},
		"a file":                      {"-", "file", "open", wire.CodePathNotFolder},
		"below a file":                {"-", "file/x", "open", wire.CodePathNotFolder},
		"a mount":                     {"-", "m/n", "open", wire.CodePathCrossesMount},
		"below a mount":               {"-", "m/n/b", "open", wire.CodePathCrossesMount},
		"holds a mount":               {"-", "m", "open", wire.CodeWorkspaceHasMounts},
		"a root that holds a mount":   {"-", "-", "covered", wire.CodeWorkspaceHasMounts},
		"a deleted root":              {"-", "-", "deleted", wire.CodePathMissing},
		"a root that became a link":   {"-", "-", "linked", wire.CodePathSymlink},
		"a root that became a file":   {"-", "-", "filed", wire.CodePathNotFolder},
		"a root that is the broker's": {"-", "-", "alias", wire.CodeWorkspaceOverlaps},
		"folder where none may be":    {"-", "a", "closed", wire.CodeSubfoldersForbidden},
		"the same by a path":          {"/workspace/closed/a", "-", "-", wire.CodeSubfoldersForbidden},
		"the same by a folder":        {"/workspace", "closed/a", "-", wire.CodeSubfoldersForbidden},
		"no handle":                   {"-", "-", "nothing", wire.CodeUnknownWorkspace},
		"another's handle":            {"-", "-", "private", wire.CodeUnknownWorkspace},
		"another's folder":            {"-", "a", "private", wire.CodeUnknownWorkspace},
		"no path":                     {"/nothing", "-", "-", wire.CodePathUnregistered},
		"another's path":              {"/private", "-", "-", wire.CodePathUnregistered},
		"the host's path":             {s.WorkspaceDir("open"), "-", "-", wire.CodePathUnregistered},
	} {
		t.Run(name, func(t *testing.T) {
			before := auditLines(t, s, c.code)
			got := say(t, s.BrokerSocket(), append(hello(t, wire.Version), rawCreate(c.path, c.folder, c.workspace)...), true)
			if got.Code != c.code || got.Advice == "" {
				t.Errorf("got %s (%s; %s), want %s", got.Code, got.Message, got.Advice, c.code)
			}
			if told := got.Message + got.Advice; name != "the host's path" && strings.Contains(told, s.Prefix) {
				t.Errorf("the client is told %q", told)
			}
			if after := auditLines(t, s, c.code); after != before+1 {
				t.Errorf("%d audit lines, there were %d", after, before)
			}
		})
	}
	if left, err := filepath.Glob(filepath.Join(s.Prefix, "var", "*", "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if pins, err := os.ReadDir(filepath.Join(s.Prefix, "run", "mounts")); err != nil || len(pins) != 1 || pins[0].Name() != "rootfs" {
		t.Errorf("left behind: %v, %v", pins, err)
	}
}

// auditLines counts the lines with the code; each is written before its answer.
func auditLines(t *testing.T, s *harness.System, code wire.Code) int {
	t.Helper()
	b, err := os.ReadFile(s.BrokerLog())
	must(t, err)
	n := 0
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "audit") && strings.Contains(line, "code="+string(code)) {
			n++
		}
	}
	return n
}

// R12 R14: another deployment's session and one that never was are refused in
// the same words; a folder is mounted alone.
func TestFoldersAndStrangers(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	s, otherSocket := startTwo(t)
	ctx, cancel := context.WithTimeout(t.Context(), bytesTimeout)
	defer cancel()
	must(t, os.MkdirAll(s.WorkspaceDir("open")+"/a/b", 0o755))
	must(t, os.WriteFile(s.WorkspaceDir("open")+"/a/b/here", nil, 0o644))
	must(t, os.WriteFile(s.WorkspaceDir("open")+"/above", nil, 0o644))
	ours, err := client.DialBroker(ctx, s.BrokerSocket())
	must(t, err)
	defer ours.Close()
	info, err := ours.Create(ctx, client.CreateOptions{Path: "/workspace/a", Folder: "b", Profile: "pi"})
	must(t, err)
	if info.Workspace != "open" || info.Folder != "a/b" {
		t.Errorf("got %+v", info)
	}
	reply := askPi(ctx, t, ours, info, `{"type":"bash","id":"1","command":"pwd; ls -A . ..; cat ../above"}`)
	if !strings.Contains(reply, "/workspace") || !strings.Contains(reply, "here") || strings.Contains(reply, "above\\n") {
		t.Errorf("the agent sees %s", reply)
	}
	theirs, err := client.DialBroker(ctx, otherSocket)
	must(t, err)
	defer theirs.Close()
	guessed := wire.SessionID(strings.Repeat("0", 31) + "1")
	for what, do := range map[string]func(wire.SessionID) error{
		"inspect":   func(id wire.SessionID) error { _, err := theirs.Inspect(ctx, id); return err },
		"signal":    func(id wire.SessionID) error { return theirs.Signal(ctx, id, "KILL") },
		"terminate": func(id wire.SessionID) error { _, err := theirs.Terminate(ctx, id, time.Second); return err },
	} {
		real, never := do(info.Session), do(guessed)
		if wire.CodeOf(real) != wire.CodeUnknownSession || wire.CodeOf(never) != wire.CodeUnknownSession || messageOf(real) != messageOf(never) {
			t.Errorf("%s: %v and %v", what, real, never)
		}
	}
	must(t, errors.Join(theirs.Delete(ctx, info.Session), theirs.Delete(ctx, guessed)))
	if i, err := ours.Inspect(ctx, info.Session); err != nil || i.State != wire.StateRunning {
		t.Errorf("after the others' requests: %+v, %v", i, err)
	}
	must(t, ours.Delete(ctx, info.Session))
}

func messageOf(err error) string {
	var e *wire.Error
	errors.As(err, &e)
	return e.Message + e.Advice
}

// askPi gives Pi one request and returns its answer.
func askPi(ctx context.Context, t *testing.T, b *client.Broker, info wire.SessionInfo, request string) string {
	t.Helper()
	session, err := client.DialSession(ctx, b.SessionSocket(info))
	must(t, err)
	defer session.Close()
	_, err = session.Attach(ctx, client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromLive, Client: t.Name()})
	must(t, err)
	_, err = session.Input(ctx, request[:40], []byte(request+"\n"))
	must(t, err)
	for {
		r, err := session.Next(ctx)
		must(t, err)
		if line := string(r.Data); r.Stream == wire.StreamExit {
			t.Fatalf("Pi ended: %s", line)
		} else if strings.Contains(line, `"response"`) {
			return line
		}
	}
}
