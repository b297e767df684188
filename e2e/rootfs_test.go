package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

const markerProfile = `
[profiles.marker]
kind = "program"
framing = "lines"
command = ["/marker-program"]

[profiles.waiting]
kind = "program"
framing = "lines"
command = ["/marker-program", "wait"]
`

// rootfsTimeout bounds one of these tests.
const rootfsTimeout = 4 * time.Minute

// newMarkerSystem prepares a system of which nothing runs yet.
func newMarkerSystem(t *testing.T) *harness.System {
	t.Helper()
	return newSystem(t, harness.Options{Profiles: markerProfile})
}

// startWorkloadSystem is startSystem on a root file system that holds one program
// alone, as /workload: such a broker starts in no time.
func startWorkloadSystem(t *testing.T, o harness.Options) *harness.System {
	t.Helper()
	s := newSystem(t, o)
	tree := filepath.Join(t.TempDir(), "tree")
	makeTree(t, tree)
	installProgram(t, "workload", tree)
	useRootfs(t, s, seal(t, tree))
	if err := s.StartBroker(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// makeTree makes the folders of a root file system.
func makeTree(t *testing.T, tree string) {
	t.Helper()
	for _, dir := range []string{"", "proc", "dev", "sys", "run", "tmp", "workspace", "home/agent", "attachments"} {
		if err := os.MkdirAll(filepath.Join(tree, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// makeMarkerTree makes a small root file system whose program ends with the
// status.
func makeMarkerTree(t *testing.T, tree string, status int) {
	t.Helper()
	makeTree(t, tree)
	cmd := exec.Command("go", "build", "-o", filepath.Join(tree, "marker-program"), "./testdata/marker")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(tree, "marker"), fmt.Append(nil, status), 0o644); err != nil {
		t.Fatal(err)
	}
}

// useRootfs changes the configuration.
func useRootfs(t *testing.T, s *harness.System, loc artifact.Location) {
	t.Helper()
	b, err := os.ReadFile(s.BrokerConfigFile())
	if err != nil {
		t.Fatal(err)
	}
	config := string(b)
	for key, value := range map[string]string{"path": loc.Path, "manifest": loc.Manifest, "digest": loc.Digest} {
		config = replaceKey(config, "rootfs", key, value)
	}
	if err := os.WriteFile(s.BrokerConfigFile(), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
}

// seal writes the manifest beside the tree.
func seal(t *testing.T, tree string) artifact.Location {
	t.Helper()
	m, err := artifact.Build(t.Context(), tree)
	if err != nil {
		t.Fatal(err)
	}
	loc := artifact.Location{Path: tree, Manifest: filepath.Join(filepath.Dir(tree), "manifest"), Digest: m.Digest()}
	f, err := os.Create(loc.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.WriteTo(f)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return loc
}

// markerOf makes a session, waits for its end and deletes it. It returns the
// status, or the code of the refusal.
func markerOf(ctx context.Context, t *testing.T, b *client.Broker) (int64, wire.Code) {
	t.Helper()
	info, err := b.Create(ctx, client.CreateOptions{Workspace: "project", Profile: "marker"})
	if err != nil {
		return -1, wire.CodeOf(err)
	}
	status := awaitMarker(ctx, t, b, info)
	if err := b.Delete(ctx, info.Session); err != nil {
		t.Fatal(err)
	}
	return status, ""
}

// awaitMarker waits for a session's end and returns its status.
func awaitMarker(ctx context.Context, t *testing.T, b *client.Broker, info wire.SessionInfo) int64 {
	t.Helper()
	var err error
	for info.State != wire.StateExited || info.Exit == nil {
		if info, err = b.Inspect(ctx, info.Session); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the session does not end: %+v", info)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return info.Exit.Code
}

// R13 R16: while a racer exchanges the folder above the rootfs for one that
// holds another tree, between the broker's checks and runsc's use, a session
// is refused or sees the tree that was verified; never the other one.
func TestRootfsSwap(t *testing.T) {
	s := newMarkerSystem(t)
	ctx, cancel := context.WithTimeout(t.Context(), rootfsTimeout)
	defer cancel()
	const good, evil = 10, 20
	place := filepath.Join(s.Prefix, "rootfs")
	makeMarkerTree(t, place+"/good/tree", good)
	makeMarkerTree(t, place+"/evil/tree", evil)
	useRootfs(t, s, seal(t, place+"/good/tree"))
	if err := s.StartBroker(ctx); err != nil {
		t.Fatal(err)
	}
	b, err := client.DialBroker(ctx, s.BrokerSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	stop := make(chan struct{})
	var racer sync.WaitGroup
	racer.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if err := unix.Renameat2(unix.AT_FDCWD, place+"/good", unix.AT_FDCWD, place+"/evil", unix.RENAME_EXCHANGE); err != nil {
					t.Errorf("the racer stumbled: %v", err)
					return
				}
			}
		}
	})
	seen := map[string]int{}
	for range 24 {
		switch status, code := markerOf(ctx, t, b); {
		case status == good:
			seen["good"]++
		case code == wire.CodeArtifactMismatch:
			seen["refused"]++
		default:
			t.Errorf("a session ended with %d, or was refused with %q", status, code)
		}
	}
	close(stop)
	racer.Wait()
	if seen["good"] == 0 || seen["refused"] == 0 {
		t.Errorf("the race did not happen: %v", seen)
	}
	t.Logf("%v", seen)
}

// importMarker makes a tree and imports it. It returns the digest.
func importMarker(ctx context.Context, t *testing.T, s *harness.System, status int) string {
	t.Helper()
	tree := filepath.Join(s.Prefix, fmt.Sprint("source-", status))
	makeMarkerTree(t, tree, status)
	out, err := exec.CommandContext(ctx, s.Program("broker-admin"), "--prefix", s.Prefix, "--json", "rootfs", "import", tree).Output()
	if err != nil {
		t.Fatalf("import: %v\n%s", err, out)
	}
	var result struct{ Digest string }
	if err := json.Unmarshal(out, &result); err != nil {
		t.Fatal(err)
	}
	return result.Digest
}

// removeRootfs removes an imported root file system, and returns what
// broker-admin says if it refuses.
func removeRootfs(ctx context.Context, s *harness.System, digest string) (refusal string) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, s.Program("broker-admin"), "--prefix", s.Prefix, "rootfs", "remove", digest)
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return stderr.String() + err.Error()
	}
	return ""
}

// R16 R33: sessions run on an imported root file system that the configuration
// names by its digest alone. A session keeps the one that it began on when a
// broker with another one follows a broker that was killed, and that one is
// not removed while it runs.
func TestImportedRootfs(t *testing.T) {
	s := newMarkerSystem(t)
	ctx, cancel := context.WithTimeout(t.Context(), rootfsTimeout)
	defer cancel()
	old, next := importMarker(ctx, t, s, 10), importMarker(ctx, t, s, 11)
	start := func(digest string) *client.Broker {
		t.Helper()
		useRootfs(t, s, artifact.Location{Digest: digest})
		if err := s.StartBroker(ctx); err != nil {
			t.Fatal(err)
		}
		b, err := client.DialBroker(ctx, s.BrokerSocket())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		return b
	}
	b := start(old)
	if status, code := markerOf(ctx, t, b); status != 10 {
		t.Errorf("the first session ended with %d, %q", status, code)
	}
	info, err := b.Create(ctx, client.CreateOptions{Workspace: "project", Profile: "waiting"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.StopBroker(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b = start(next)
	if status, code := markerOf(ctx, t, b); status != 11 {
		t.Errorf("a session of the next broker ended with %d, %q", status, code)
	}
	for digest, why := range map[string]string{old: "a session runs on it", next: "the configuration names it"} {
		if refusal := removeRootfs(ctx, s, digest); !strings.HasPrefix(refusal, "rootfs_in_use: ") {
			t.Errorf("removing while %s: %q", why, refusal)
		}
	}
	if info, err = b.Terminate(ctx, info.Session, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	awaitMarker(ctx, t, b, info) // its status is not known to a broker that came later
	if got, err := os.ReadFile(s.WorkspaceDir("project") + "/marker"); err != nil || string(got) != "10" {
		t.Errorf("the session that outlived its broker saw %q, %v", got, err)
	}
	if err := b.Delete(ctx, info.Session); err != nil {
		t.Fatal(err)
	}
	if refusal := removeRootfs(ctx, s, old); refusal != "" {
		t.Errorf("removing what nothing uses: %s", refusal)
	}
}
