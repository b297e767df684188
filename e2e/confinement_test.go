package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// sessionRecord is what the broker keeps of a session's processes.
type sessionRecord struct {
	BridgeUID, ReaperUID    int
	Sandbox, Reaper, Bridge struct{ PID int }
}

func readRecord(t *testing.T, s *harness.System, id wire.SessionID) sessionRecord {
	t.Helper()
	b, err := os.ReadFile(recordFile(s, id))
	if err != nil {
		t.Fatal(err)
	}
	var r sessionRecord
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func recordFile(s *harness.System, id wire.SessionID) string {
	return filepath.Join(s.Prefix, "var", "sessions", string(id)+".json")
}

// goferOf finds the process by the words that runsc gave it.
func goferOf(t *testing.T, id wire.SessionID) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err == nil && strings.HasPrefix(string(b), "runsc-gofer\x00") && strings.Contains(string(b), string(id)) {
			pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
			return pid
		}
	}
	t.Fatal("there is no gofer")
	return 0
}

// mask is a set of capabilities as /proc shows it.
func mask(capabilities ...int) string {
	var m uint64
	for _, c := range capabilities {
		m |= 1 << c
	}
	return fmt.Sprintf("%016x", m)
}

// goferCapabilities are those that runsc gives its gofer.
var goferCapabilities = []int{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_SYS_CHROOT}

// R2 R3 R15 R18 R20: every process of a running session has the user, the
// capabilities, the filters, the namespaces, the limits and the descriptors
// that it is meant to have, and no others.
func TestConfinement(t *testing.T) {
	rootonly.Test(t)
	ctx, cancel := context.WithTimeout(t.Context(), deathsTimeout)
	defer cancel()
	s := startSmallSystem(t, harness.Options{Profiles: echoProfiles})
	b, _, info := startSession(ctx, t, s, client.CreateOptions{Profile: "stdout"})
	r := readRecord(t, s, info.Session)
	none := mask()
	broker := mask(append([]int{unix.CAP_KILL, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SETPCAP, unix.CAP_SYS_ADMIN, unix.CAP_SYS_NICE}, goferCapabilities...)...)
	gofer := mask(goferCapabilities...)
	for name, p := range map[string]struct {
		pid  int
		want map[string]string
	}{
		"broker": {s.BrokerPID(), map[string]string{
			"Uid": users(0), "CapEff": broker, "CapPrm": broker, "CapBnd": broker, "CapInh": none, "CapAmb": none,
		}},
		"bridge": {r.Bridge.PID, map[string]string{
			"Uid": users(r.BridgeUID), "Gid": users(r.BridgeUID), "Groups": "", "NoNewPrivs": "1", "Seccomp": "2", "Seccomp_filters": "2",
			"CapEff": none, "CapPrm": none, "CapBnd": none, "CapInh": none, "CapAmb": none,
		}},
		"reaper": {r.Reaper.PID, map[string]string{
			"Uid": users(r.ReaperUID), "Gid": users(r.ReaperUID), "Groups": "", "NoNewPrivs": "1", "Seccomp": "2", "Seccomp_filters": "1",
			"CapEff": none, "CapPrm": none, "CapBnd": none, "CapInh": none, "CapAmb": none,
		}},
		"sandbox": {r.Sandbox.PID, map[string]string{
			"Groups": "", "NoNewPrivs": "1", "Seccomp": "2", "CapEff": none, "CapPrm": none, "CapInh": none, "CapAmb": none,
		}},
		"gofer": {goferOf(t, info.Session), map[string]string{
			"NoNewPrivs": "1", "Seccomp": "2", "CapEff": gofer, "CapPrm": gofer,
		}},
	} {
		checkThreads(t, name, p.pid, p.want)
	}
	if users := []int{r.BridgeUID, r.ReaperUID, 0, 65534}; len(slices.Compact(slices.Sorted(slices.Values(users)))) != 4 {
		t.Errorf("the users are %v", users)
	}
	for _, pid := range []int{r.Bridge.PID, r.Reaper.PID} {
		// What is not dumpable belongs to root there (proc(5)).
		var st unix.Stat_t
		if err := unix.Stat(fmt.Sprintf("/proc/%d/mem", pid), &st); err != nil || st.Uid != 0 {
			t.Errorf("the memory of process %d belongs to %d, %v", pid, st.Uid, err)
		}
		checkLimits(t, pid)
	}
	for _, kind := range []string{"net", "ipc"} {
		ours, _ := os.Readlink("/proc/self/ns/" + kind)
		if theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", r.Bridge.PID, kind)); err != nil || ours == theirs {
			t.Errorf("the bridge's %s namespace is %s, %v", kind, theirs, err)
		}
	}
	own := `/dev/null|pipe:.*|socket:.*|anon_inode:\[event(fd|poll)\]`
	checkDescriptors(t, "bridge", r.Bridge.PID, own+"|"+regexp.QuoteMeta(filepath.Join(s.Prefix, "var/spool", string(info.Session)))+"/.*")
	checkDescriptors(t, "reaper", r.Reaper.PID, `/dev/null|pipe:.*|anon_inode:\[event(fd|poll)\]`)
	if err := b.Delete(ctx, info.Session); err != nil {
		t.Error(err)
	}
}

func users(id int) string {
	return strings.TrimSuffix(strings.Repeat(strconv.Itoa(id)+"\t", 4), "\t")
}

// checkThreads compares what /proc tells of each thread.
func checkThreads(t *testing.T, name string, pid int, want map[string]string) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		t.Errorf("%s: no threads, %v", name, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		have := map[string]string{}
		for _, line := range strings.Split(string(b), "\n") {
			key, value, _ := strings.Cut(line, ":")
			have[key] = strings.TrimSpace(value)
		}
		for key, value := range want {
			if have[key] != value {
				t.Errorf("%s: %s is %q, want %q", name, key, have[key], value)
			}
		}
	}
}

func checkLimits(t *testing.T, pid int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		t.Fatal(err)
	}
	have := strings.Join(strings.Fields(string(b)), " ")
	for _, want := range []string{"Max core file size 0 0", "Max open files 1024 1024", "Max processes 512 512", "Max locked memory 0 0", "Max file size unlimited unlimited"} {
		if !strings.Contains(have, want) {
			t.Errorf("process %d has not %q in its limits: %s", pid, want, have)
		}
	}
}

func checkDescriptors(t *testing.T, name string, pid int, want string) {
	t.Helper()
	allowed := regexp.MustCompile("^(" + want + ")$")
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) < 4 {
		t.Errorf("%s: %d descriptors, %v", name, len(entries), err)
	}
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && !allowed.MatchString(target) {
			t.Errorf("%s: descriptor %s is %s", name, e.Name(), target)
		}
	}
}
