package session

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// withFolders makes a deployment whose workspace has folders that clients may
// name.
func withFolders(t *testing.T, s *system) (d *registry.Deployment, root string) {
	t.Helper()
	d = s.config.Deployments["one"]
	w := d.Workspaces["project"]
	w.Subfolders, w.ClientPath = true, "/workspace/project"
	must(t, os.MkdirAll(w.Root+"/a/b", 0o755))
	return d, w.Root
}

// R13: of a workspace with a folder the agent gets the folder alone; who asks
// is told which one, by its name and by the client's path alike.
func TestFolder(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	d, root := withFolders(t, s)
	for _, r := range []wire.Create{
		{ID: 1, Workspace: "project", Folder: "a/b"},
		{ID: 1, Path: "/workspace/project/a/b"},
		{ID: 1, Path: "/workspace/project/a", Folder: "b"},
	} {
		info, err := m.Create(context.Background(), d, r)
		must(t, err)
		defer s.delete(m, info.Session) // also if the test fails
		if info.Workspace != "project" || info.Folder != "a/b" {
			t.Errorf("got %+v", info)
		}
		want, err := os.Stat(root + "/a/b")
		must(t, err)
		got, err := os.Stat(s.l.Session("one", false, info.Session).Pin)
		must(t, err)
		if !os.SameFile(want, got) {
			t.Error("another folder is pinned")
		}
		records, err := m.store.Load()
		if err != nil || len(records) != 1 || records[0].Folder != "a/b" {
			t.Errorf("the record says %+v, %v", records, err)
		}
		s.delete(m, info.Session)
	}
}

// R14: each way to name a folder wrongly has its own code; clients are told no
// path of the host, and nothing is left.
func TestFolderRefused(t *testing.T) {
	for name, c := range map[string]struct {
		request wire.Create
		prepare func(root string) error
		code    wire.Code
	}{
		"missing":      {wire.Create{Folder: "none"}, nil, wire.CodePathMissing},
		"a link":       {wire.Create{Folder: "l"}, func(root string) error { return os.Symlink("/etc", root+"/l") }, wire.CodePathSymlink},
		"below a link": {wire.Create{Folder: "l/b"}, func(root string) error { return os.Symlink("a", root+"/l") }, wire.CodePathSymlink},
		"a file":       {wire.Create{Folder: "f"}, func(root string) error { return os.WriteFile(root+"/f", nil, 0o644) }, wire.CodePathNotFolder},
		"a mount":      {wire.Create{Folder: "a/b"}, func(root string) error { return unix.Mount("tmpfs", root+"/a/b", "tmpfs", 0, "size=1m") }, wire.CodePathCrossesMount},
		"holds mounts": {wire.Create{Folder: "a"}, func(root string) error { return unix.Mount("tmpfs", root+"/a/b", "tmpfs", 0, "size=1m") }, wire.CodeWorkspaceHasMounts},
		"root holds":   {wire.Create{}, func(root string) error { return unix.Mount("tmpfs", root+"/a/b", "tmpfs", 0, "size=1m") }, wire.CodeWorkspaceHasMounts},
		"root gone":    {wire.Create{}, os.RemoveAll, wire.CodePathMissing},
		"root a link":  {wire.Create{}, func(root string) error { return errors.Join(os.RemoveAll(root), os.Symlink("/etc", root)) }, wire.CodePathSymlink},
		"root a file": {wire.Create{}, func(root string) error {
			return errors.Join(os.RemoveAll(root), os.WriteFile(root, nil, 0o644))
		}, wire.CodePathNotFolder},
		"root is ours": {wire.Create{}, func(root string) error {
			return unix.Mount(filepath.Dir(root)+"/var/state", root, "", unix.MS_BIND, "")
		}, wire.CodeWorkspaceOverlaps},
		"root holds ours": {wire.Create{}, func(root string) error {
			return unix.Mount(filepath.Dir(root), root, "", unix.MS_BIND, "")
		}, wire.CodeWorkspaceOverlaps},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t)
			m := s.manager()
			d, root := withFolders(t, s)
			t.Cleanup(func() {
				unix.Unmount(root+"/a/b", unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
				unix.Unmount(root, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			})
			if c.prepare != nil {
				must(t, c.prepare(root))
			}
			c.request.ID, c.request.Workspace = 1, "project"
			info, err := m.Create(context.Background(), d, c.request)
			if wire.CodeOf(err) != c.code {
				s.delete(m, info.Session)
				t.Fatalf("got %v, want %s", err, c.code)
			}
			if e := AsError(err); strings.Contains(e.Message+e.Advice, "/ses-") || e.Advice == "" {
				t.Errorf("the client is told %q, %q", e.Message, e.Advice)
			}
			s.checkNothingLeft()
		})
	}
}

const secret = "sk-very-secret-0123456789"

// R62: a credential is a copy that root and the agent's group can read, which
// nobody else gets to; it is in no configuration, record or log.
func TestCredentials(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	d := s.config.Deployments["one"]
	file := filepath.Dir(s.l.Etc) + "/key"
	must(t, os.WriteFile(file, []byte(secret), 0o600))
	d.Credentials = map[string]*registry.Credential{"key": {File: file, As: "auth.json"}}
	info, err := m.Create(context.Background(), d, wire.Create{ID: 1, Workspace: "project", Profile: "pi"})
	must(t, err)
	defer s.delete(m, info.Session) // also if the test fails
	p := s.l.Session("one", false, info.Session)
	copied := p.Bundle + "/credentials/auth.json"
	for path, want := range map[string]struct {
		mode     os.FileMode
		uid, gid uint32
	}{
		copied:                           {0o440, 0, 1000},
		p.Bundle + "/credentials":        {os.ModeDir | 0o700, 0, 0},
		p.State + "/.pi":                 {os.ModeDir | 0o700, 1000, 1000},
		p.State + "/.pi/agent":           {os.ModeDir | 0o700, 1000, 1000},
		p.State + "/.pi/agent/auth.json": {0o600, 1000, 1000},
		s.l.Bundles():                    {os.ModeDir | 0o700, 0, 0},
		s.l.States():                     {os.ModeDir | 0o700, 0, 0},
		s.l.Var:                          {os.ModeDir | 0o700, 0, 0},
	} {
		st, err := os.Lstat(path)
		must(t, err)
		if sys := st.Sys().(*syscall.Stat_t); st.Mode() != want.mode || sys.Uid != want.uid || sys.Gid != want.gid {
			t.Errorf("%s is %v of %d:%d", path, st.Mode(), sys.Uid, sys.Gid)
		}
	}
	if b, err := os.ReadFile(copied); err != nil || string(b) != secret {
		t.Errorf("got %q, %v", b, err)
	}
	for _, uid := range []uint32{1000, s.config.Bridge.FirstUID} {
		cmd := exec.Command("/bin/cat", copied)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: 1000}}
		if out, err := cmd.CombinedOutput(); err == nil || strings.Contains(string(out), secret) {
			t.Errorf("uid %d reads %q", uid, out)
		}
	}
	for _, path := range []string{p.Bundle + "/config.json", s.l.Records() + "/" + string(info.Session) + ".json"} {
		b, err := os.ReadFile(path)
		if err != nil || strings.Contains(string(b), secret) {
			t.Errorf("%s holds the secret, or %v", path, err)
		}
	}
	s.delete(m, info.Session)
	if strings.Contains(s.log.String(), secret) {
		t.Error("the log holds the secret")
	}
	// A fixed program gets none.
	other := s.create(m, "well")
	if _, err := os.Lstat(s.l.Session("one", false, other.Session).Home + "/home/.pi"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a fixed program: %v", err)
	}
	s.delete(m, other.Session)
}

// R62 R71: a credential that others could have written, or that is none, fails
// the creation; its path is the log's alone.
func TestCredentialUnusable(t *testing.T) {
	for name, spoil := range map[string]func(file string) error{
		"missing":      os.Remove,
		"of another":   func(file string) error { return os.Chown(file, 1000, 0) },
		"for a group":  func(file string) error { return os.Chmod(file, 0o620) },
		"a link":       func(file string) error { return errors.Join(os.Remove(file), os.Symlink("/etc/hostname", file)) },
		"a pipe":       func(file string) error { return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)) },
		"a folder":     func(file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) },
		"too long":     func(file string) error { return os.Truncate(file, maxCredential+1) },
		"folder open":  func(file string) error { return os.Chmod(filepath.Dir(file), 0o777) },
		"folder taken": func(file string) error { return os.Chown(filepath.Dir(file), 1000, 0) },
		"folder a link": func(file string) error {
			dir := filepath.Dir(file)
			return errors.Join(os.Rename(dir, dir+"2"), os.Symlink(dir+"2", dir))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t)
			m := s.manager()
			d := s.config.Deployments["one"]
			file := filepath.Dir(s.l.Etc) + "/keys/key"
			must(t, os.Mkdir(filepath.Dir(file), 0o700))
			must(t, os.WriteFile(file, []byte(secret), 0o600))
			must(t, spoil(file))
			d.Credentials = map[string]*registry.Credential{"key": {File: file, As: "auth.json"}}
			info, err := m.Create(context.Background(), d, wire.Create{ID: 1, Workspace: "project", Profile: "pi"})
			if wire.CodeOf(err) != wire.CodeCredentialUnusable {
				s.delete(m, info.Session)
				t.Fatalf("got %v", err)
			}
			if e := AsError(err); strings.Contains(e.Message+e.Advice, "/keys") || e.Advice == "" {
				t.Errorf("the client is told %q, %q", e.Message, e.Advice)
			}
			if !strings.Contains(s.log.String(), "/keys") || strings.Contains(s.log.String(), secret) {
				t.Error("the log names no file, or the secret")
			}
			s.checkNothingLeft()
		})
	}
}

// An agent's home may hold links: what is made in it stays in it.
func TestCredentialTargetsStayInTheHome(t *testing.T) {
	s := newSystem(t)
	outside := t.TempDir()
	ses := &session{m: s.newManager()}
	defer ses.m.Close()
	ses.paths.State, ses.paths.Bundle = t.TempDir(), t.TempDir()
	must(t, os.Symlink(outside, ses.paths.State+"/.pi"))
	file := filepath.Dir(s.l.Etc) + "/key"
	must(t, os.WriteFile(file, nil, 0o600))
	_, err := ses.copyCredentials(&creation{
		workspace:   &registry.Workspace{UID: 1000, GID: 1000},
		profile:     &registry.Profile{State: registry.Unlimited},
		credentials: map[string]*registry.Credential{"key": {File: file, As: "auth.json"}},
	})
	if err == nil {
		t.Error("it followed a link out of the home")
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("outside is %v", left)
	}
}
