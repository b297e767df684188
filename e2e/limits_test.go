package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// limitsTimeout bounds one test of limits.
const limitsTimeout = 4 * time.Minute

const limitsProfiles = `
[profiles.small]
kind = "program"
framing = "lines"
command = ["/bin/bash"]
memory = "256MiB"
pids = 96
open_files = 128
tmp = "16MiB"
state = "32MiB"

[profiles.slow]
kind = "program"
framing = "lines"
command = ["/bin/bash"]
cpus = 0.2

[profiles.free]
kind = "program"
framing = "lines"
command = ["/bin/bash"]
state = "unlimited"
`

// R34: the home, /tmp and the open files end where the profile says, as the
// agent is told by the usual errors; a session beside it does not notice.
func TestStorageEnds(t *testing.T) {
	rootonly.Test(t)
	ctx, cancel := context.WithTimeout(t.Context(), limitsTimeout)
	defer cancel()
	s := startSmallSystem(t, harness.Options{Profiles: limitsProfiles})
	full, beside := startShell(ctx, t, s, "small"), startShell(ctx, t, s, "small")
	for _, dir := range []string{"$HOME", "$TMPDIR", "/tmp"} {
		got := full.run(ctx, `head -c 64M /dev/zero > `+dir+`/file; echo "status $?"; stat -c 'size %s' `+dir+`/file; rm `+dir+`/file; echo again > `+dir+`/file && cat `+dir+`/file; rm `+dir+`/file`)
		size, _ := strconv.Atoi(word(got, "size "))
		if !strings.Contains(got, "No space left on device") || size < 8<<20 || size > 32<<20 || !strings.Contains(got, "again") {
			t.Errorf("%s: %q", dir, got)
		}
	}
	if got := full.run(ctx, "head -c 64M /dev/zero > $HOME/file; ls -A $HOME; stat -c %a,%u $HOME; touch $HOME/other"); !strings.Contains(got, "file\ntmp\n700,1000\n") {
		t.Errorf("the home: %q", got)
	}
	if got := beside.run(ctx, "head -c 16M /dev/zero > $HOME/file && head -c 8M /dev/zero > /tmp/file && echo fine"); got != "fine\n" {
		t.Errorf("the session beside: %q", got)
	}
	if got := full.run(ctx, `ulimit -n; (for i in $(seq 200); do exec {f}< /dev/null || exit 9; done); echo "status $?"`); !strings.Contains(got, "128\n") || !strings.Contains(got, "Too many open files") {
		t.Errorf("open files: %q", got)
	}
	full.delete(ctx)
	beside.delete(ctx)
	checkNothing(t, s)
}

// R34: without a limit, by the operator's choice, the home is a plain folder.
func TestUnlimitedHome(t *testing.T) {
	rootonly.Test(t)
	ctx, cancel := context.WithTimeout(t.Context(), limitsTimeout)
	defer cancel()
	s := startSmallSystem(t, harness.Options{Profiles: limitsProfiles})
	sh := startShell(ctx, t, s, "free")
	if got := sh.run(ctx, "head -c 64M /dev/zero > $HOME/file && mkdir -p $HOME/a/b && ls -A $HOME"); got != "a\nfile\ntmp\n" {
		t.Errorf("the home: %q", got)
	}
	sh.delete(ctx)
	checkNothing(t, s)
}

// word returns what follows the prefix on its line.
func word(text, prefix string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

func checkNothing(t *testing.T, s *harness.System) {
	t.Helper()
	left, err := s.Leftovers()
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// groupFile reads a file of a session's cgroup, v1 or v2.
func groupFile(t *testing.T, id wire.SessionID, v1, v2 string) string {
	t.Helper()
	for _, pattern := range []string{"/sys/fs/cgroup/*/paseo-sandbox-*/" + string(id) + "/" + v1, "/sys/fs/cgroup/paseo-sandbox-*/" + string(id) + "/" + v2} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range found {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
	}
	t.Fatalf("the session has neither %s nor %s", v1, v2)
	return ""
}

// R34: two loops that take all the time they get are held back by the kernel.
func TestCPUIsLimited(t *testing.T) {
	rootonly.Test(t)
	ctx, cancel := context.WithTimeout(t.Context(), limitsTimeout)
	defer cancel()
	s := startSmallSystem(t, harness.Options{Profiles: limitsProfiles})
	sh := startShell(ctx, t, s, "slow")
	began, before := time.Now(), cpuTime(t, sh.info.Session)
	sh.run(ctx, "(while :; do :; done) & (while :; do :; done) &")
	throttled := func() int {
		n, err := strconv.Atoi(word(groupFile(t, sh.info.Session, "cpu.stat", "cpu.stat"), "nr_throttled "))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for throttled() < 20 {
		select {
		case <-ctx.Done():
			t.Fatalf("throttled %d times", throttled())
		case <-time.After(50 * time.Millisecond):
		}
	}
	// A loaded machine gives less; more than a fifth it never gives.
	used, wall := cpuTime(t, sh.info.Session)-before, time.Since(began)
	if used > wall/2 {
		t.Errorf("%v of CPU time in %v", used, wall)
	}
	sh.delete(ctx)
	checkNothing(t, s)
}

func cpuTime(t *testing.T, id wire.SessionID) time.Duration {
	t.Helper()
	text := groupFile(t, id, "cpuacct.usage", "cpu.stat")
	if micros := word(text, "usage_usec "); micros != "" {
		text = micros + "000"
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(n)
}

// eventually polls until the function returns true.
func eventually(ctx context.Context, t *testing.T, what string, ok func() bool) {
	t.Helper()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatal(errors.Join(errors.New("not in time: "+what), context.Cause(ctx)))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// hog takes memory until something happens.
const hog = `node -e 'const all=[]; for(;;) all.push(Buffer.alloc(8<<20, 1))'`

// R31, R34: out of memory is named as that, in the exit record and by the
// broker; a session beside it goes on.
func TestOutOfMemoryIsNamed(t *testing.T) {
	rootonly.Test(t)
	for name, script := range map[string]string{
		"the first process": "exec " + hog,
		"a shell's string":  "exec tail /dev/zero",
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limitsTimeout)
			defer cancel()
			s := startSystem(t, harness.Options{Profiles: limitsProfiles})
			sh, beside := startShell(ctx, t, s, "small"), startShell(ctx, t, s, "small")
			said := sh.run(ctx, script)
			if sh.exit == nil {
				t.Fatalf("it goes on: %q", said)
			}
			if sh.exit.Reason != wire.ReasonOutOfMemory || sh.exit.Code != 137 || sh.exit.Signal != "KILL" {
				t.Errorf("the exit record: %+v", *sh.exit)
			}
			eventually(ctx, t, "the broker knows", func() bool {
				info, err := sh.broker.Inspect(ctx, sh.info.Session)
				return err == nil && info.State == wire.StateExited && info.Exit.Reason == wire.ReasonOutOfMemory && info.Exit.Code == 137
			})
			if got := beside.run(ctx, "echo fine"); got != "fine\n" {
				t.Errorf("the session beside: %q", got)
			}
			sh.delete(ctx)
			beside.delete(ctx)
			checkNothing(t, s)
		})
	}
}

// R31, R34: a child that takes all memory is killed as on any Linux, and the
// agent goes on; its later end is not blamed on memory.
func TestChildOutOfMemory(t *testing.T) {
	rootonly.Test(t)
	ctx, cancel := context.WithTimeout(t.Context(), limitsTimeout)
	defer cancel()
	s := startSystem(t, harness.Options{Profiles: limitsProfiles})
	sh := startShell(ctx, t, s, "small")
	if got := sh.run(ctx, hog+`; echo "status $?"`); word(got, "status ") != "137" {
		t.Errorf("the child: %q", got)
	}
	if got := word(groupFile(t, sh.info.Session, "memory.oom_control", "memory.events"), "oom_kill "); got == "0" {
		t.Error("the kernel has killed nothing: the test tests nothing")
	}
	sh.run(ctx, "exit 3")
	if sh.exit == nil || sh.exit.Code != 3 || sh.exit.Reason != wire.ReasonExited {
		t.Errorf("the exit record: %+v", sh.exit)
	}
	if !strings.Contains(s.LogTail(), "memory_exhausted") {
		t.Error("the broker's log does not tell of it")
	}
	sh.delete(ctx)
	checkNothing(t, s)
}

// R34: a fork bomb stays in its sandbox and gets EAGAIN: the sandbox lives, the
// host does not come to refuse it threads, the broker and a session beside it
// answer, and it can be ended.
func TestForkBomb(t *testing.T) {
	rootonly.Test(t)
	ctx, cancel := context.WithTimeout(t.Context(), limitsTimeout)
	defer cancel()
	s := startSmallSystem(t, harness.Options{Profiles: limitsProfiles})
	sh, beside := startShell(ctx, t, s, "small"), startShell(ctx, t, s, "small")
	sh.send(ctx, "bomb() { bomb | bomb & }; bomb; while :; do :; done")
	for said := ""; !strings.Contains(said, "Resource temporarily unavailable"); {
		r, err := sh.session.Next(ctx)
		if err != nil || r.Stream == wire.StreamExit {
			t.Fatalf("%v, %q after %q", err, r.Data, said)
		}
		said += string(r.Data)
	}
	if got := beside.run(ctx, "echo fine"); got != "fine\n" {
		t.Errorf("the session beside: %q", got)
	}
	if info, err := beside.broker.Inspect(ctx, sh.info.Session); err != nil || info.State != wire.StateRunning {
		t.Errorf("the sandbox: %+v, %v", info, err)
	}
	if refused := word(groupFile(t, sh.info.Session, "pids.events", "pids.events"), "max "); refused != "0" {
		t.Errorf("the host has refused %s threads", refused)
	}
	sh.delete(ctx)
	if got := beside.run(ctx, "echo fine"); got != "fine\n" {
		t.Errorf("the session beside, later: %q", got)
	}
	beside.delete(ctx)
	checkNothing(t, s)
}

// R31, R34: a sandbox that dies because the host refuses it a thread has ended
// for that reason.
func TestTooManyProcessesIsNamed(t *testing.T) {
	rootonly.Test(t)
	ctx, cancel := context.WithTimeout(t.Context(), limitsTimeout)
	defer cancel()
	s := startSmallSystem(t, harness.Options{Profiles: limitsProfiles})
	sh := startShell(ctx, t, s, "free")
	sh.run(ctx, "true")
	// What the profile allows is taken away, as if the sandbox needed more.
	for _, pattern := range []string{"/sys/fs/cgroup/pids/", "/sys/fs/cgroup/"} {
		found, err := filepath.Glob(pattern + s.CgroupParent() + "/" + string(sh.info.Session) + "/pids.max")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range found {
			if err := os.WriteFile(file, []byte("1"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	sh.run(ctx, "for i in $(seq 200); do sleep 300 & done; while :; do sleep 1; done")
	if sh.exit == nil || sh.exit.Reason != wire.ReasonTooManyProcesses {
		t.Errorf("the exit record: %+v", sh.exit)
	}
	eventually(ctx, t, "the broker knows", func() bool {
		info, err := sh.broker.Inspect(ctx, sh.info.Session)
		return err == nil && info.State == wire.StateExited && info.Exit.Reason == wire.ReasonTooManyProcesses
	})
	sh.delete(ctx)
	checkNothing(t, s)
}
