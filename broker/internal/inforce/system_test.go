package inforce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/cgroup"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/disk"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/runsc"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/server"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/session"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noRuntime has no containers and makes none.
type noRuntime struct{}

var errNone = errors.New("no runtime")

func (noRuntime) Create(context.Context, wire.SessionID, string, uint32, runsc.Streams) (int, *process.Process, error) {
	return 0, nil, errNone
}
func (noRuntime) Start(context.Context, wire.SessionID) error             { return errNone }
func (noRuntime) Signal(context.Context, wire.SessionID, string) error    { return errNone }
func (noRuntime) Delete(context.Context, wire.SessionID) error            { return nil }
func (noRuntime) List(context.Context) (map[string]wire.SessionID, error) { return nil, nil }
func (noRuntime) Tidy() error                                             { return nil }

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// system is a configuration on files, with a manager that can't make sessions.
type system struct {
	t      *testing.T
	l      layout.Layout
	log    *syncBuffer
	active *Configuration
}

const digest = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

func brokerFile(change string) string {
	return `[runsc]
path = "/nowhere/runsc"
manifest = "/nowhere/manifest"
digest = "` + digest + `"
[rootfs]
path = "/nowhere/rootfs"
manifest = "/nowhere/manifest"
digest = "` + digest + `"
` + change
}

const bridge = "[bridge]\nfirst_uid = 2000000\nuid_count = 100\n"

// deployment is a file with the users, lines before its tables, and
// workspaces.
func deployment(uids, lines string, workspaces ...string) string {
	b := "peer_uids = [" + uids + "]\ndefault_profile = \"pi\"\n" + lines + "\n[profiles.pi]\nkind = \"pi\"\n"
	for _, w := range workspaces {
		b += fmt.Sprintf("[workspaces.%s]\nroot = \"/srv/nowhere/%s\"\nuid = 1000\ngid = 1000\n", w, w)
	}
	return b
}

func newSystem(t *testing.T) *system {
	t.Helper()
	rootonly.Test(t)
	dir, err := os.MkdirTemp("", "inf-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := layout.At(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := &system{t: t, l: l, log: &syncBuffer{}}
	if err := errors.Join(os.Chmod(dir, 0o711), os.MkdirAll(l.Etc+"/deployments", 0o700)); err != nil {
		t.Fatal(err)
	}
	s.write("broker.toml", brokerFile(bridge))
	s.write("deployments/home.toml", deployment("0, 1000", "", "project", "other"))
	config, err := registry.Load(l)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Prepare(config.Containers()); err != nil {
		t.Fatal(err)
	}
	log := hclog.New(&hclog.LoggerOptions{Output: s.log})
	groups, err := cgroup.Open(l.CgroupParent())
	if err != nil {
		t.Fatal(err)
	}
	clock, err := record.OpenClock(l.Clock(), "this", record.Monotonic)
	if err != nil {
		t.Fatal(err)
	}
	m := session.New(session.Config{Layout: l, Clock: clock, Registry: config, Groups: groups, Images: &disk.Images{}, Runtime: noRuntime{}, CheckArtifacts: func() error { return nil }, Log: log, Audit: audit.ToLog(log)})
	if s.active, err = Open(Options{Layout: l, Manager: m, Limits: server.Defaults, Log: log, Listen: true}, config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.active.Close()
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if left, _ := filepath.Glob(l.Run + "/*/*/*.sock"); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
		if t.Failed() {
			t.Logf("the log:\n%s", s.log)
		}
	})
	return s
}

// write replaces a file of the configuration at once.
func (s *system) write(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.l.Etc, name)
	if err := errors.Join(os.WriteFile(path+".next", []byte(text), 0o600), os.Rename(path+".next", path)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *system) dial(id string) *client.Broker {
	s.t.Helper()
	path := s.l.BrokerSocket(id, false)
	if id == "" {
		path = s.l.AdminSocket()
	}
	b, err := client.DialBroker(s.t.Context(), path)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { b.Close() })
	return b
}

func (s *system) reload() {
	s.t.Helper()
	b := s.dial("")
	defer b.Close()
	if err := b.Reload(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

func socket(t *testing.T, path string) string {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil {
		return "none"
	}
	return fmt.Sprintf("%d %o", st.Sys().(*syscall.Stat_t).Uid, st.Mode().Perm())
}

func countFDs(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
