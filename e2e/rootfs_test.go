package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

const markerProfile = `
[profiles.marker]
kind = "program"
framing = "lines"
command = ["/marker-program"]
`

// rootfsTimeout bounds one of these tests.
const rootfsTimeout = 4 * time.Minute

// newMarkerSystem prepares a system of which nothing runs yet.
func newMarkerSystem(t *testing.T) *harness.System {
	t.Helper()
	rootonly.Test(t)
	s, err := harness.New(harness.Options{
		Bin: programs(t), PeerUIDs: []uint32{0}, Profiles: markerProfile,
		Workspaces: []harness.Workspace{{Name: "project", UID: harness.DefaultPeerUID, GID: harness.DefaultPeerUID}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the broker's log ends with:\n%s", s.LogTail())
		}
		if err := s.Close(); err != nil {
			t.Errorf("close the system: %v", err)
		}
	})
	return s
}

// makeMarkerTree makes a small root file system whose program ends with the
// status.
func makeMarkerTree(t *testing.T, tree string, status int) {
	t.Helper()
	for _, dir := range []string{"", "proc", "dev", "sys", "run", "tmp", "workspace", "home/agent", "attachments"} {
		if err := os.MkdirAll(filepath.Join(tree, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
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
	if err := b.Delete(ctx, info.Session); err != nil {
		t.Fatal(err)
	}
	return info.Exit.Code, ""
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
