package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// memoryTree is the hierarchy of the memory controller, v1 or v2.
func memoryTree() string {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.controllers"); err == nil {
		return root
	}
	return root + "/memory"
}

// R34, R71: on a host that can't bound a session the broker does not start, and
// changes nothing.
func TestBrokerRefusesWithoutLimits(t *testing.T) {
	rootonly.Test(t)
	cover := func(dirs string) string {
		return "for d in " + dirs + "; do [ ! -d $d ] || mount -t tmpfs none $d || exit 99; done"
	}
	for name, c := range map[string]struct{ prepare, code, words string }{
		"no memory controller": {cover(memoryTree()), "limits_unavailable", "memory"},
		"no e2fsprogs":         {cover("/usr/sbin /sbin"), "disk_unavailable", "e2fsprogs"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := harness.New(harness.Options{Bin: programs(t)})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Discard()
			before := tree(t, s)
			ctx, cancel := context.WithTimeout(t.Context(), limitsTimeout)
			defer cancel()
			cmd := exec.CommandContext(ctx, "/bin/sh", "-c", c.prepare+"; exec "+s.Program("paseo-sandbox-broker")+" --prefix "+s.Prefix+" --listen")
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 7 || !strings.Contains(string(out), c.code) || !strings.Contains(string(out), c.words) {
				t.Errorf("%v, want status 7, %s and %s in\n%s", err, c.code, c.words, out)
			}
			if after := tree(t, s); after != before {
				t.Errorf("the refusal changed files:\n%s\nwere:\n%s", after, before)
			}
			checkNothing(t, s)
		})
	}
}

// R34: runsc sets no limits in a group that is there already. Where somebody
// makes it first, the session is not started without them.
func TestGroupsMadeByOthersAreRefused(t *testing.T) {
	rootonly.Test(t)
	ctx, cancel := context.WithTimeout(t.Context(), limitsTimeout)
	defer cancel()
	s := startSmallSystem(t, harness.Options{Profiles: limitsProfiles})
	made := make(chan error, 1)
	go func() {
		made <- makeFirst(ctx, filepath.Join(s.Prefix, "var", "sessions"), filepath.Join(memoryTree(), s.CgroupParent()))
	}()
	b, err := client.DialBroker(ctx, s.BrokerSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	info, err := b.Create(ctx, client.CreateOptions{Workspace: "project", Profile: "small"})
	if err := errors.Join(<-made, context.Cause(ctx)); err != nil {
		t.Fatal(err)
	}
	if wire.CodeOf(err) != wire.CodeLimitsUnavailable {
		t.Fatalf("got %+v, %v", info, err)
	}
	eventually(ctx, t, "nothing is left", func() bool {
		left, err := s.Leftovers()
		return err == nil && len(left) == 0
	})
}

// makeFirst waits for the record of a session and makes its group.
func makeFirst(ctx context.Context, records, parent string) error {
	for ctx.Err() == nil {
		entries, err := os.ReadDir(records)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if id, ok := strings.CutSuffix(e.Name(), ".json"); ok {
				return os.MkdirAll(filepath.Join(parent, id), 0o755)
			}
		}
		time.Sleep(time.Millisecond)
	}
	return ctx.Err()
}
