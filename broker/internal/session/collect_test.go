package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/disk"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

const (
	orphanID = "0123456789abcdef0123456789abcdef"
	socketID = "0123456789abcdef0123456789abcde0"
)

// tree lists everything below the prefix and of our cgroups: names, modes,
// sizes, times of change, contents of small files.
func (s *system) tree() string {
	s.t.Helper()
	var b strings.Builder
	groups, _ := filepath.Glob("/sys/fs/cgroup/*" + s.l.CgroupParent() + "/*")
	fmt.Fprintln(&b, groups)
	err := filepath.WalkDir(filepath.Dir(s.l.Run), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintln(&b, path, info.Mode(), info.Size(), info.ModTime())
		if info.Mode().IsRegular() && info.Size() < 64<<10 {
			text, err := os.ReadFile(path)
			fmt.Fprintf(&b, "%q %v\n", text, err)
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return b.String()
}

// collect collects everything, page by page.
func (s *system) collect(m *Manager, dry bool) []wire.Finding {
	s.t.Helper()
	var all []wire.Finding
	for after := wire.SessionID(""); ; after = all[len(all)-1].Session {
		page, more, err := m.Collect(context.Background(), dry, after)
		if err != nil {
			s.t.Fatal(err)
		}
		if m := (wire.Collected{ID: 1, Findings: page, More: more}); m.Validate() != nil {
			s.t.Fatal(m.Validate())
		}
		all = append(all, page...)
		if !more {
			return all
		}
	}
}

// litter makes one thing of each kind that bears the id of no session.
func (s *system) litter() error {
	p := s.l.Session("one", false, orphanID)
	for _, dir := range []string{p.Pin, p.Bundle, p.Spool} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	for _, file := range []string{p.Custody, p.Spool + "/stdout", s.runtime.root + "/" + orphanID, s.l.Session("two", true, socketID).Socket} {
		if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
			return err
		}
	}
	hierarchy := "/sys/fs/cgroup/pids"
	if s.groups.Version() == "v2" {
		hierarchy = "/sys/fs/cgroup"
	}
	return errors.Join(
		unix.Mount(s.l.Bundles(), p.Pin, "", unix.MS_BIND, ""),
		s.images.Mount(context.Background(), p.State, p.Home, disk.MinSize),
		os.MkdirAll(hierarchy+s.groups.Path(orphanID), 0o755),
	)
}

// startStray runs a process that looks like the bridge of a session, as the
// user, until its standard input ends.
func (s *system) startStray(run string, id string, uid uint32) *exec.Cmd {
	s.t.Helper()
	program, err := os.Open(os.Getenv(bridgeProgram))
	if err != nil {
		s.t.Fatal(err)
	}
	defer program.Close()
	cmd := &exec.Cmd{
		Path: "/proc/self/fd/3", Args: []string{bridgeName, "--run=" + run, id}, Env: []string{strayVariable + "=1"},
		ExtraFiles: []*os.File{program}, SysProcAttr: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}},
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	return cmd
}

// R32: everything of each kind that a session can leave behind is listed with
// its reason, a dry run changes nothing, collecting removes it, and nothing
// else; the second time there is nothing.
func TestCollect(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	lives := s.create(m, "")
	if err := s.litter(); err != nil {
		t.Fatal(err)
	}
	stray := s.startStray(s.l.Run, orphanID, s.config.Bridge.FirstUID+90)
	before := s.tree()
	found := s.collect(m, true)
	if after := s.tree(); after != before {
		t.Errorf("a dry run has changed something:\n%s\n%s", before, after)
	}
	var kinds []string
	for _, f := range found {
		if f.Reason != wire.WhyNoRecord || f.Failed != "" || f.Session != orphanID && f.Session != socketID {
			t.Errorf("found %+v", f)
		}
		kinds = append(kinds, string(f.Kind))
	}
	slices.Sort(kinds)
	want := []string{"bundle", "cgroup", "container", "custody_socket", "home", "loop_device", "mount", "mount", "process", "session_socket", "spool"}
	if !slices.Equal(kinds, want) {
		t.Errorf("found %v, want %v", kinds, want)
	}
	if removed := s.collect(m, false); len(removed) != len(found) {
		t.Errorf("removed %+v, found %+v", removed, found)
	}
	s.eventually("the stray bridge is dead", func() bool { return !alive(stray.Process.Pid) })
	if left := s.collect(m, true); len(left) != 0 {
		t.Errorf("left are %+v", left)
	}
	if !s.audited("operation=orphanRemoved", 2)() {
		t.Error("the audit does not tell of two orphans")
	}
	if i, err := m.Inspect(Operator(), lives.Session); err != nil || i.State != wire.StateRunning || i.BridgePID != lives.BridgePID {
		t.Errorf("the session that lives is %+v, %v", i, err)
	}
	s.delete(m, lives.Session)
}

// R18 R32: a process that only claims to be a bridge without a record, of
// another user or of another broker, is none of ours.
func TestCollectBelievesNoWords(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	impostor := s.startStray(s.l.Run, orphanID, 1000)
	foreign := s.startStray("/run/another", socketID, s.config.Bridge.FirstUID+92)
	if found := s.collect(m, false); len(found) != 0 {
		t.Errorf("found %+v", found)
	}
	if !alive(impostor.Process.Pid) || !alive(foreign.Process.Pid) {
		t.Error("a process of somebody else was ended")
	}
}

// R32 R35: what policies have due, and what was made or deleted in part, is
// listed with its reason and done at once; what can't be removed says so, and
// is done the next time.
func TestCollectSessions(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	half := s.create(m, "")
	s.runtime.failDelete = runtimeFailed("delete", errors.New("no"))
	if err := m.Delete(context.Background(), Operator(), half.Session); err == nil {
		t.Fatal("it was deleted")
	}
	found := s.collect(m, true)
	if len(found) != 1 || found[0].Session != half.Session || found[0].Reason != wire.WhyHalfDeleted || found[0].Failed != "" {
		t.Errorf("found %+v", found)
	}
	if found = s.collect(m, false); len(found) != 1 || found[0].Failed != wire.CodeInternal {
		t.Errorf("what could not be removed is told as %+v", found)
	}
	s.runtime.failDelete = nil
	if found = s.collect(m, false); len(found) != 1 || found[0].Failed != "" || !s.gone(m, half.Session)() {
		t.Errorf("found %+v", found)
	}

	abandoned := s.create(m, "abandoned")
	// The policy is not enforced meanwhile: its turn is ours.
	if err := m.reaping.take(m.ctx, "busy"); err != nil {
		t.Fatal(err)
	}
	s.skip(2 * time.Hour)
	found, _, err := m.findings(context.Background())
	m.reaping.release()
	if err != nil || len(found) != 1 || found[0].Session != abandoned.Session || found[0].Reason != wire.WhyAbandoned || found[0].AgeMillis < 7_200_000 {
		t.Errorf("found %+v, %v", found, err)
	}
	s.collect(m, false)
	s.eventually("ended", s.hasState(m, abandoned.Session, wire.StateExited))
	s.delete(m, abandoned.Session)
}

// R32 R33: one session that can't be cleaned holds up no other: those that live
// are under control at once, the others are cleaned side by side.
func TestRecoverySideBySide(t *testing.T) {
	defer func(d time.Duration) { undoTimeout = d }(undoTimeout)
	s := newSystem(t)
	ids := []wire.SessionID{s.crashWith("running", "returning"), s.crashWith("running", "returning"), s.crashWith("running", "returning")}
	for _, id := range ids[:2] {
		s.killSandbox(id)
	}
	undoTimeout = 10 * time.Minute
	stuck := make(chan struct{}, 2)
	release := make(chan struct{})
	s.runtime.deleting = func() {
		stuck <- struct{}{}
		<-release
	}
	m := s.newManager()
	defer m.Close()
	done := make(chan error, 1)
	go func() { done <- m.Recover(context.Background()) }()
	// Both that are stuck are stuck at once, and the third one, which comes
	// last in the order of ids, is under control all the same.
	for range 2 {
		select {
		case <-stuck:
		case <-time.After(90 * time.Second):
			t.Fatal("one waits for the other")
		}
	}
	s.eventually("heard", s.said("spares_regained"))
	if i, err := m.Inspect(Operator(), ids[2]); err != nil || i.State != wire.StateRunning {
		t.Errorf("got %+v, %v", i, err)
	}
	select {
	case err := <-done:
		t.Errorf("the recovery ended with two sessions to clean: %v", err)
	default:
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	s.runtime.deleting = nil
	for _, id := range ids {
		s.delete(m, id)
	}
}

// R32: collecting that is killed in the middle of a removal is done by the next
// broker.
func TestCollectAfterCrash(t *testing.T) {
	for _, step := range []string{"bridge", "container", "state"} {
		t.Run(step, func(t *testing.T) {
			s := newSystem(t)
			s.crashWith("undo "+step+" after", crashCollecting)
			if len(s.leftovers()) == 0 {
				t.Error("nothing was left")
			}
			m := s.manager()
			if left := s.collect(m, false); len(left) != 0 {
				t.Errorf("after a start there is %+v", left)
			}
		})
	}
}

func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(b, []byte(") Z "))
}
