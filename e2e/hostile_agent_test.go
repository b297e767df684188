package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"golang.org/x/sys/unix"
)

// R15 R17 R18: what a hostile agent sees, and what comes of each of its tries,
// is a table.
func TestHostileAgent(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), hostileTimeout)
	defer cancel()
	s := startSystem(t, harness.Options{Profiles: probeProfiles})
	dir := s.WorkspaceDir("project")
	installProgram(t, "probe", dir)
	secret := secretOfTheHost(t)
	h := startHostile(ctx, t, s, "project")
	t.Run("facts", func(t *testing.T) { compare(t, h.ask(ctx, t, "facts"), factsTable()) })
	t.Run("calls", func(t *testing.T) { compare(t, h.ask(ctx, t, "calls"), callsTable()) })
	t.Run("writes", func(t *testing.T) {
		compare(t, h.ask(ctx, t, "write", "/", "/etc", "/usr/bin", "/attachments", "/run", "/dev", "/proc", "/sys", "/home", "/root", "/home/agent", "/tmp", "/workspace"),
			merge(same("EACCES", "/", "/etc", "/usr/bin", "/attachments", "/run", "/dev", "/home", "/root"), same("ok", "/home/agent", "/tmp", "/workspace"),
				map[string]string{"/proc": "EACCES", "/sys": "EACCES"}))
	})
	t.Run("files", func(t *testing.T) {
		compare(t, h.ask(ctx, t, "make", "/workspace", secret), filesTable())
		if b, err := os.ReadFile(secret); err != nil || string(b) != "secret of the host" {
			t.Errorf("the host's file is now %q, %v", b, err)
		}
		checkHostFolder(t, dir, map[string]bool{"probe": true})
	})
	t.Run("network", func(t *testing.T) { checkNetwork(ctx, t, h) })
	t.Run("identity", func(t *testing.T) { checkIdentity(ctx, t, s, h, secret) })
	t.Run("tree", func(t *testing.T) { checkTree(ctx, t, s, h) })
	t.Run("moved folder", func(t *testing.T) { checkMovedFolder(ctx, t, h, dir, filepath.Dir(secret)) })
	t.Run("smuggled files", func(t *testing.T) { checkSmuggled(ctx, t, h, dir) })
}

// R15: a read-only workspace is one.
func TestHostileAgentInReadOnlyWorkspace(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), hostileTimeout)
	defer cancel()
	s := startSystem(t, harness.Options{
		Profiles:   probeProfiles,
		Workspaces: []harness.Workspace{{Name: "locked", UID: harness.DefaultPeerUID, GID: harness.DefaultPeerUID, ReadOnly: true}},
	})
	dir := s.WorkspaceDir("locked")
	installProgram(t, "probe", dir)
	secret := secretOfTheHost(t)
	h := startHostile(ctx, t, s, "locked")
	facts := factsTable()
	facts["mounts"] = strings.Replace(sandboxMounts, "/workspace rw", "/workspace ro", 1)
	compare(t, h.ask(ctx, t, "facts"), facts)
	compare(t, h.ask(ctx, t, "write", "/workspace"), same("EROFS", "/workspace"))
	for name, answer := range h.ask(ctx, t, "make", "/workspace", secret) {
		if strings.HasPrefix(answer, "ok") {
			t.Errorf("%s: %s", name, answer)
		}
	}
	compare(t, h.ask(ctx, t, "calls"), callsTable())
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the workspace has %v, %v", entries, err)
	}
}

// checkIdentity looks for words of the host in all of /proc and /sys.
func checkIdentity(ctx context.Context, t *testing.T, s *harness.System, h *hostile, secret string) {
	words := []string{s.Prefix, s.Artifacts().Rootfs.Path, filepath.Dir(secret), string(h.info.Session)}
	for _, file := range []string{"/proc/sys/kernel/random/boot_id", "/etc/machine-id", "/proc/cmdline"} {
		if b, err := os.ReadFile(file); err == nil && len(bytes.TrimSpace(b)) > 0 {
			words = append(words, string(bytes.TrimSpace(b)))
		}
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		t.Fatal(err)
	}
	words = append(words, unix.ByteSliceToString(uts.Release[:]))
	got := h.ask(ctx, t, "search", words...)
	if len(got["files"]) < 3 {
		t.Errorf("only %s files were searched", got["files"])
	}
	delete(got, "files")
	compare(t, got, nil)
	// The search finds what is there.
	if found := h.ask(ctx, t, "search", "4.19.0-gvisor"); found["/proc/version"] == "" {
		t.Errorf("the search found %v", found)
	}
	for file, answer := range h.ask(ctx, t, "read", "/etc/hostname", "/etc/machine-id", "/proc/1/mem", "/proc/kcore", "/proc/kallsyms", "/dev/mem", "/dev/kmsg") {
		if strings.HasPrefix(answer, "ok: ") && answer != "ok: " {
			t.Errorf("%s can be read: %.200q", file, answer)
		}
	}
}

// checkTree compares the whole tree with the manifest of the root file system
// and the places that are mounted on it.
func checkTree(ctx context.Context, t *testing.T, s *harness.System, h *hostile) {
	b, err := os.ReadFile(s.Artifacts().Rootfs.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	m, err := artifact.ParseManifest(b)
	if err != nil {
		t.Fatal(err)
	}
	mounted := []string{"/dev", "/proc", "/sys", "/run", "/tmp", "/workspace", "/home/agent"}
	want := map[string]string{}
	for _, e := range m.Entries {
		path := filepath.Join("/", e.Path)
		if !below(mounted, path) {
			want[path] = treeEntry(e)
		}
	}
	got := h.ask(ctx, t, "walk", mounted...)
	if len(got) < 1000 {
		t.Errorf("the walk found %d files", len(got))
	}
	compare(t, got, want)
	// What is mounted there, but the kernel's own.
	compare(t, h.ask(ctx, t, "list", "/run", "/dev/shm", "/home/agent", "/attachments"), map[string]string{
		"/run": "", "/dev/shm": "", "/home/agent": "tmp written-by-the-probe ", "/attachments": "",
	})
}

// treeEntry is an entry as the probe tells it.
func treeEntry(e artifact.Entry) string {
	return fmt.Sprintf("%c %04o %d %d", e.Type, e.Mode, e.UID, e.GID)
}

// below reports whether path is one of the folders or lies below one.
func below(folders []string, path string) bool {
	for _, f := range folders {
		if path == f || strings.HasPrefix(path, f+"/") {
			return true
		}
	}
	return false
}

// checkMovedFolder moves a folder that the agent holds open out of its
// workspace: it leads nowhere else.
func checkMovedFolder(ctx context.Context, t *testing.T, h *hostile, workspace, outside string) {
	inside := filepath.Join(workspace, "held")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(inside, "own"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	compare(t, h.ask(ctx, t, "hold", "/workspace/held"), same("ok", "/workspace/held"))
	if err := os.Rename(inside, filepath.Join(outside, "held")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "held", "later"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	// The folder itself stays open, as it would without a sandbox.
	compare(t, h.ask(ctx, t, "below", "/workspace/held", "own", "later"), same("ok", "own", "later"))
	got := h.ask(ctx, t, "below", "/workspace/held", "../secret", "../../secret", "../"+outside+"/secret", "../../../../.."+outside+"/secret")
	for path, answer := range got {
		if answer == "ok" {
			t.Errorf("the host's %s is open to the agent", path)
		}
	}
	if got := h.ask(ctx, t, "read", "/workspace/held/own")["/workspace/held/own"]; strings.HasPrefix(got, "ok") {
		t.Errorf("the moved folder is still in the workspace: %q", got)
	}
}

// checkSmuggled puts what an agent must not reach into its workspace: sockets
// and pipes of the host, and devices.
func checkSmuggled(ctx context.Context, t *testing.T, h *hostile, dir string) {
	socket, err := net.Listen("unix", filepath.Join(dir, "host-socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	node := func(name string, mode uint32, device uint64) string {
		path := filepath.Join(dir, name)
		if err := unix.Mknod(path, mode|0o666, int(device)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
		return "/workspace/" + name
	}
	if err := os.Chmod(filepath.Join(dir, "host-socket"), 0o777); err != nil {
		t.Fatal(err)
	}
	fifo, kmsg := node("host-fifo", unix.S_IFIFO, 0), node("host-kmsg", unix.S_IFCHR, unix.Mkdev(1, 11))
	disk, null := node("host-disk", unix.S_IFBLK, unix.Mkdev(7, 0)), node("host-null", unix.S_IFCHR, unix.Mkdev(1, 3))
	compare(t, h.ask(ctx, t, "connect", "/workspace/host-socket"), same("ECONNREFUSED", "/workspace/host-socket"))
	compare(t, h.ask(ctx, t, "open", fifo, kmsg, disk, null), map[string]string{
		fifo: "EPERM", kmsg: "ENXIO", disk: "EPERM", null: "ok", // gVisor's own null
	})
}
