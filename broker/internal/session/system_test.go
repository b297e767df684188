package session

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/cgroup"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/disk"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/launch"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/workspace"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/shared/staticbin"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	launch.RunIfStub()
	restartWindow, hangTimeout, policyTick = time.Hour, time.Hour, 10*time.Millisecond
	switch {
	case os.Getenv(strayVariable) != "":
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	case os.Args[0] == bridgeName:
		os.Exit(runFakeBridge())
	case os.Args[0] == fakeSandboxName:
		os.Exit(fakeSandbox())
	case os.Getenv(crashPrefix) != "":
		crashChild()
	}
	unix.Umask(0o022)
	if os.Geteuid() != 0 {
		goleak.VerifyTestMain(m)
	}
	program, err := staticbin.Test()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Setenv(bridgeProgram, program)
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(filepath.Dir(program))
		os.Exit(code)
	}))
}

// strayVariable makes the program wait for the end of its input.
const strayVariable = "SESSION_TEST_STRAY"

// bridgeProgram names the program of fake bridges, which is ours without the
// race detector, to children too.
const bridgeProgram = "SESSION_TEST_BRIDGE"

// firstUID begins a range that no other test process uses at the same time.
func firstUID() uint32 { return 3_000_000 + uint32(os.Getpid()%10_000)*100 }

type unixStat = syscall.Stat_t

// system is a prefix with everything that a Manager needs.
type system struct {
	t       testing.TB
	l       layout.Layout
	config  *registry.Config
	runtime *fakeRuntime
	groups  *cgroup.Groups
	images  *disk.Images
	log     *syncBuffer
	exe     int
	// skipped is how much the clock is ahead, in milliseconds.
	skipped atomic.Uint64
}

// skip lets time pass, as far as policies see.
func (s *system) skip(d time.Duration) { s.skipped.Add(uint64(d.Milliseconds())) }

// syncBuffer is a log that may be read while it is written.
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

func newSystem(t testing.TB) *system {
	t.Helper()
	rootonly.Test(t)
	prefix, err := os.MkdirTemp("", "ses-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(prefix+"/fake", 0o700); err != nil {
		t.Fatal(err)
	}
	s := openSystem(t, prefix, firstUID())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log:\n%s", s.log)
		}
		s.checkNothingLeft()
		if t.Failed() {
			s.killBridges()
		}
		s.groups.RemoveEmpty(s.groups.Parent())
		workspace.ReleasePinRoot(s.l.Mounts())
		os.RemoveAll(prefix)
	})
	return s
}

// openSystem is newSystem on an existing prefix. t is nil in a child.
func openSystem(t testing.TB, prefix string, uid uint32) *system {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	l, err := layout.At(prefix)
	must(err)
	must(l.Prepare(map[string]bool{"one": false, "two": true}))
	must(workspace.PreparePinRoot(l.Mounts()))
	groups, err := cgroup.Open(l.CgroupParent())
	must(err)
	must(os.MkdirAll(prefix+"/ws", 0o755))
	must(os.Chown(prefix+"/ws", 1000, 1000))
	exe, err := unix.Open(os.Getenv(bridgeProgram), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(err)
	if t != nil {
		t.Cleanup(func() { unix.Close(exe) })
	}
	config := &registry.Config{Bridge: registry.Bridge{FirstUID: uid, UIDCount: 100}, Deployments: map[string]*registry.Deployment{}}
	for _, id := range []string{"one", "two"} {
		config.Deployments[id] = &registry.Deployment{
			ID: id, Container: id == "two", PeerUIDs: []uint32{1000}, MaxSessions: 3, DefaultProfile: "well",
			Workspaces: map[string]*registry.Workspace{
				"project": {Root: prefix + "/ws", UID: 1000, GID: 1000},
				"missing": {Root: prefix + "/missing", UID: 1000, GID: 1000},
			},
			Profiles: map[string]*registry.Profile{"pi": {Kind: registry.KindPi, State: registry.Unlimited, Framing: wire.FramingPi, MaxRecord: 1 << 20, Spool: 32 << 20, MaxInput: behaveWell}},
		}
		for name, behaviour := range map[string]registry.Size{
			"well": behaveWell, "garbage": behaveGarbage, "dying": behaveDying, "crashing": behaveCrashing, "failing": behaveFailing, "deaf": behaveDeaf,
			"early": behaveEarlyExit, "smuggling": behaveSmuggling, "closing": behaveClosingInput, "foreign": behaveForeign, "signalling": behaveSignalling,
			"flooding": behaveFlooding, "oversized": behaveOversized, "returning": behaveReturning, "lying": behaveLying,
			"sharing": behaveSharing, "slow": behaveSlow,
		} {
			config.Deployments[id].Profiles[name] = &registry.Profile{Kind: registry.KindProgram, Framing: wire.FramingLines, Command: []string{"/bin/cat"}, MaxRecord: 1 << 20, Spool: 32 << 20, MaxInput: behaviour, State: registry.Unlimited}
		}
		config.Deployments[id].Profiles["well"].State = disk.MinSize
	}
	// Those whose policy does something: an hour is skipped, not waited for.
	for name, p := range map[string]registry.Profile{
		"abandoned": {MaxInput: behaveSeating, EndAbandoned: registry.Period(time.Hour)},
		"kept":      {MaxInput: behaveSeating, DeleteEnded: registry.Period(time.Hour)},
		"unheard":   {MaxInput: behaveWell, EndAbandoned: registry.Period(time.Hour)},
	} {
		p.Kind, p.Framing, p.Command, p.MaxRecord, p.Spool, p.State = registry.KindProgram, wire.FramingLines, []string{"/bin/cat"}, 1<<20, 32<<20, registry.Unlimited
		config.Deployments["one"].Profiles[name] = &p
	}
	config.Deployments["one"].Profiles["ending"] = &registry.Profile{Kind: registry.KindProgram, Framing: wire.FramingLines, Command: []string{"/bin/cat"}, MaxRecord: 1 << 20, Spool: 32 << 20, MaxInput: behaveWell, State: registry.Unlimited, Unattached: registry.UnattachedTerminate}
	return &system{t: t, l: l, config: config, runtime: &fakeRuntime{root: prefix + "/fake"}, groups: groups, images: &disk.Images{}, log: &syncBuffer{}, exe: exe}
}

// manager makes a manager that has recovered. It is closed with the test
// unless that is done before.
func (s *system) manager() *Manager {
	s.t.Helper()
	m := s.newManager()
	s.t.Cleanup(func() { m.Close() })
	if err := m.Recover(context.Background()); err != nil {
		s.t.Fatal(err)
	}
	return m
}

func (s *system) newManager() *Manager {
	clock, err := record.OpenClock(s.l.Clock(), "this", func() uint64 { return record.Monotonic() + s.skipped.Load() })
	if err != nil {
		panic(err)
	}
	return New(Config{
		Clock:  clock,
		Layout: s.l, Registry: s.config, Runtime: s.runtime, Groups: s.groups, Images: s.images, CheckArtifacts: func() error { return nil }, Bridge: s.exe, Boot: "this",
		Log: hclog.New(&hclog.LoggerOptions{Output: s.log, Level: hclog.Info}),
	})
}

func (s *system) create(m *Manager, profile string) wire.SessionInfo {
	s.t.Helper()
	info, err := m.Create(context.Background(), s.config.Deployments["one"], wire.Create{ID: 1, Workspace: "project", Profile: profile})
	if err != nil {
		s.t.Fatal(err)
	}
	return info
}

func (s *system) delete(m *Manager, id wire.SessionID) {
	s.t.Helper()
	if err := m.Delete(context.Background(), Operator(), id); err != nil {
		s.t.Fatal(err)
	}
}

// eventually polls until the condition holds.
func (s *system) eventually(what string, ok func() bool) {
	s.t.Helper()
	deadline := time.Now().Add(90 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			s.t.Fatalf("not in time: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *system) said(text string) func() bool {
	return func() bool { return strings.Contains(s.log.String(), text) }
}

func (s *system) hasState(m *Manager, id wire.SessionID, state wire.State) func() bool {
	return func() bool {
		i, err := m.Inspect(Operator(), id)
		return err == nil && i.State == state
	}
}

// leftovers lists what sessions of this system still have on the host.
func (s *system) leftovers() []string {
	var left []string
	for _, pid := range findProcesses(func(words []string, pid int) bool {
		if words[0] == bridgeName {
			st, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
			return err == nil && s.config.Bridge.Holds(uidOf(st))
		}
		return words[0] == fakeSandboxName && slices.Contains(words, s.runtime.root)
	}) {
		if p, err := process.Open(pid); err == nil {
			left = append(left, fmt.Sprintf("process %d", pid))
			p.Close()
		}
	}
	pins, err := workspace.Pins(s.l.Mounts())
	if err != nil {
		s.t.Fatal(err)
	}
	left = append(left, pins...)
	for _, dir := range []string{s.l.Records(), s.l.Mounts(), s.l.Custody(), s.l.Bundles(), s.l.Spools(), s.l.States(), s.runtime.root, s.l.Run + "/d/one/s", s.l.Run + "/c/two/s"} {
		found, _ := filepath.Glob(dir + "/*")
		left = append(left, found...)
	}
	found, _ := filepath.Glob("/sys/fs/cgroup/*" + s.l.CgroupParent() + "/*")
	for _, cgroup := range found {
		if _, err := os.Stat(filepath.Join(s.runtime.root, filepath.Base(cgroup))); err == nil {
			left = append(left, cgroup)
		}
	}
	return left
}

func (s *system) checkNothingLeft() {
	s.t.Helper()
	if left := s.leftovers(); len(left) > 0 {
		s.t.Errorf("left behind: %q", left)
	}
}

func uidOf(st os.FileInfo) uint32 { return st.Sys().(*unixStat).Uid }

// openFDs counts our descriptors.
func openFDs(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
