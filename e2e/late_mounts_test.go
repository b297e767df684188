package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// mount mounts for the length of the test.
func mount(t *testing.T, source, target, kind string, flags uintptr) {
	t.Helper()
	if err := unix.Mount(source, target, kind, flags, ""); err != nil {
		t.Fatalf("mount %s at %s: %v", source, target, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			t.Errorf("unmount %s: %v", target, err)
		}
	})
}

func propagation(t *testing.T, target string, kind uintptr) {
	t.Helper()
	if err := unix.Mount("", target, "", kind, ""); err != nil {
		t.Fatal(err)
	}
}

func makeFolder(t *testing.T, path string, uid int) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, uid, uid); err != nil {
		t.Fatal(err)
	}
}

// R13 R18: a mount made on the host while a session runs, below its workspace,
// on it or above it, never appears inside, whatever the propagation of the
// mount that the workspace lies on; and nothing that the agent does makes one
// on the host.
func TestLateMounts(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), hostileTimeout)
	defer cancel()
	kinds := map[string]uintptr{"shared": unix.MS_SHARED, "private": unix.MS_PRIVATE, "slave": unix.MS_SLAVE}
	options := harness.Options{Profiles: probeProfiles}
	for _, name := range []string{"shared", "private", "slave", "unbindable"} {
		options.Workspaces = append(options.Workspaces, harness.Workspace{Name: name, UID: harness.DefaultPeerUID, GID: harness.DefaultPeerUID})
	}
	s := startSystem(t, options)
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) { lateMounts(ctx, t, s, name, kind) })
	}
	t.Run("unbindable", func(t *testing.T) {
		dir := s.WorkspaceDir("unbindable")
		mount(t, "tmpfs", dir, "tmpfs", 0)
		propagation(t, dir, unix.MS_UNBINDABLE)
		b, err := client.DialBroker(ctx, s.BrokerSocket())
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		_, err = b.Create(ctx, client.CreateOptions{Workspace: "unbindable", Profile: "probe"})
		if wire.CodeOf(err) != wire.CodeWorkspaceUnresolvable {
			t.Errorf("got %v", err)
		}
	})
}

// lateMounts starts a session in a workspace on a mount of the given
// propagation, mounts whatever can be mounted, and looks from inside.
func lateMounts(ctx context.Context, t *testing.T, s *harness.System, name string, kind uintptr) {
	dir := s.WorkspaceDir(name)
	secret := filepath.Dir(secretOfTheHost(t))
	// The peer or master of the workspace's mount: what is mounted there
	// propagates to it.
	peer := filepath.Join(s.Prefix, "workspaces", name+"-peer")
	makeFolder(t, peer, 0)
	mount(t, "tmpfs", peer, "tmpfs", 0)
	propagation(t, peer, unix.MS_SHARED)
	mount(t, peer, dir, "", unix.MS_BIND)
	propagation(t, dir, kind)
	makeFolder(t, dir, harness.DefaultPeerUID)
	for _, folder := range []string{"tmpfs", "bind", "by-peer"} {
		makeFolder(t, filepath.Join(dir, folder), harness.DefaultPeerUID)
	}
	installProgram(t, "probe", dir)
	h := startHostile(ctx, t, s, name)

	mount(t, "tmpfs", filepath.Join(dir, "tmpfs"), "tmpfs", 0)
	mount(t, secret, filepath.Join(dir, "bind"), "", unix.MS_BIND)
	mount(t, secret, filepath.Join(peer, "by-peer"), "", unix.MS_BIND)
	for _, f := range []string{"tmpfs/secret", "bind/secret-too"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("secret of the host"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	propagated, err := os.ReadDir(filepath.Join(dir, "by-peer"))
	if err != nil || (len(propagated) > 0) != (kind != unix.MS_PRIVATE) {
		t.Fatalf("on the host the peer's mount shows %v, %v: the test tests nothing", propagated, err)
	}
	look := func(when string) {
		compare(t, h.ask(ctx, t, "list", "/workspace", "/workspace/tmpfs", "/workspace/bind", "/workspace/by-peer"), map[string]string{
			"/workspace": "bind by-peer probe tmpfs ", "/workspace/tmpfs": "", "/workspace/bind": "", "/workspace/by-peer": "",
		})
		if t.Failed() {
			t.Fatalf("seen from inside %s", when)
		}
	}
	look("after mounts below the workspace")
	mount(t, secret, dir, "", unix.MS_BIND)
	look("after a mount on the workspace")
	before := mountTable(t, s.Prefix)
	h.ask(ctx, t, "calls")
	if after := mountTable(t, s.Prefix); after != before {
		t.Errorf("the agent changed the host's mounts from\n%s\nto\n%s", before, after)
	}
	above := filepath.Dir(dir)
	mount(t, "tmpfs", above, "tmpfs", 0)
	look("after a mount above the workspace")
}

// mountTable is what is mounted below dir.
func mountTable(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, " "+dir+"/") {
			table.WriteString(line)
		}
	}
	return table.String()
}
