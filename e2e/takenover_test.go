package e2e

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// attackerProgram stands in the bridge's place, by a name by which leftovers
// are found.
const attackerProgram = "paseo-sandbox-bridge-attacker"

// exceptions are the attempts that don't end with EPERM, which is what the
// filter that every bridge is started under says. fenced by another error
// means by another fence.
var exceptions = map[string]string{
	// Landlock: a bridge may execute what it is, at its start.
	"execute": "EACCES",
}

// R3 R18: a bridge that was taken over, before it has narrowed itself down,
// reaches no file, socket or process of the host, the broker or another
// session; and the broker does for it what its own session allows, and nothing
// else. Every attempt is made unfenced too, and must end differently.
func TestTakenOverBridge(t *testing.T) {
	rootonly.Test(t)
	ctx, cancel := context.WithTimeout(t.Context(), deathsTimeout)
	defer cancel()
	attacker := filepath.Join(programs(t), attackerProgram)
	s := startSmallSystem(t, harness.Options{Profiles: echoProfiles, BrokerConfig: func(c string) string {
		return replaceKey(c, "bridge", "path", attacker)
	}})
	b, err := client.DialBroker(ctx, s.BrokerSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var sessions [2]wire.SessionInfo
	for i := range sessions {
		if sessions[i], err = b.Create(ctx, client.CreateOptions{Workspace: "project", Profile: "stdout"}); err != nil {
			t.Fatal(err)
		}
	}
	victim, own := sessions[0], sessions[1]
	held := descriptorsOf(t, s.BrokerPID())
	targets := targetsOf(t, s, b, victim)
	control := attacks(unfenced(t, attacker, targets))
	if err := os.WriteFile(filepath.Join(s.Prefix, "var/spool", string(own.Session), "index"), targets, 0o600); err != nil {
		t.Fatal(err)
	}
	log := awaitLog(ctx, t, s, "bridge_replaced")
	fenced := attacks(log)
	if len(fenced) < 60 || len(control) < 60 {
		t.Fatalf("%d attempts, %d unfenced", len(fenced), len(control))
	}
	for name, got := range fenced {
		want, ok := exceptions[name]
		if !ok {
			want = "EPERM"
		}
		free, tried := control[name]
		if !tried {
			continue // a request to the broker
		}
		if got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		if free == got {
			t.Errorf("%s: without fences too it ends with %s: the attempt shows nothing", name, free)
		}
	}
	if got := fenced["claim the exit of a session that runs"]; got != "invalid_argument" {
		t.Errorf("a false claim of the exit was answered with %q", got)
	}
	// A request of another protocol, that names another session, is its end.
	for _, want := range []string{"attack sent descriptors", "bridge_misbehaved", "unknown_message"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has no %q", want)
		}
	}
	for descriptorsOf(t, s.BrokerPID()) != held {
		select {
		case <-ctx.Done():
			t.Fatalf("the broker has %d descriptors, had %d", descriptorsOf(t, s.BrokerPID()), held)
		case <-time.After(20 * time.Millisecond):
		}
	}
	for _, i := range sessions {
		now, err := b.Inspect(ctx, i.Session)
		if err != nil || now.State != wire.StateRunning || now.SandboxPID != i.SandboxPID {
			t.Errorf("a session is %+v, %v", now, err)
		}
		if replaced := now.BridgePID != i.BridgePID; replaced != (i.Session == own.Session) {
			t.Errorf("the bridge of session %s was %d, is %d", i.Session, i.BridgePID, now.BridgePID)
		}
		if err := b.Delete(ctx, i.Session); err != nil {
			t.Error(err)
		}
	}
}

func descriptorsOf(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// targetsOf describes the victim, the broker and the host to the attacker.
func targetsOf(t *testing.T, s *harness.System, b *client.Broker, victim wire.SessionInfo) []byte {
	t.Helper()
	abstract := "pss-" + filepath.Base(s.Prefix)
	l, err := net.Listen("unix", "@"+abstract)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	// It can't be executed, but that is not what a fence says.
	program := filepath.Join(s.Prefix, "program")
	if err := os.WriteFile(program, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(program, 0o755); err != nil {
		t.Fatal(err)
	}
	r := readRecord(t, s, victim.Session)
	spool := filepath.Join(s.Prefix, "var/spool", string(victim.Session))
	targets, err := json.Marshal(map[string]any{
		"Session": victim.Session, "Abstract": abstract, "Program": program,
		"Files": map[string]string{
			"another spool": filepath.Join(spool, "stdout"), "another input": filepath.Join(spool, "input.data"), "another record": recordFile(s, victim.Session),
			"the registry": s.DeploymentFile(), "a file of all": "/etc/passwd", "its own memory": "/proc/self/mem",
			"the memory of another bridge": "/proc/" + strconv.Itoa(r.Bridge.PID) + "/mem", "the descriptors of the broker": "/proc/" + strconv.Itoa(s.BrokerPID()) + "/fd",
			"the environment of init": "/proc/1/environ",
		},
		"Sockets":   map[string]string{"the broker": s.BrokerSocket(), "the operator's socket": s.AdminSocket(), "another session": b.SessionSocket(victim)},
		"Processes": map[string]int{"the broker": s.BrokerPID(), "another bridge": r.Bridge.PID, "a reaper": r.Reaper.PID, "a sandbox": r.Sandbox.PID},
	})
	if err != nil {
		t.Fatal(err)
	}
	return targets
}

// unfenced makes the attempts as root, without any fence.
func unfenced(t *testing.T, attacker string, targets []byte) string {
	t.Helper()
	cmd := exec.Command(attacker, "control")
	cmd.Stdin = strings.NewReader(string(targets))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

var attackLine = regexp.MustCompile(`attack ([^=\n"]+) = ([^"\n]*)`)

// attacks reads how each attempt ended.
func attacks(text string) map[string]string {
	found := make(map[string]string)
	for _, m := range attackLine.FindAllStringSubmatch(text, -1) {
		found[m[1]] = m[2]
	}
	return found
}

// awaitLog polls the broker's log until it has the words.
func awaitLog(ctx context.Context, t *testing.T, s *harness.System, words string) string {
	t.Helper()
	for {
		log, err := os.ReadFile(s.BrokerLog())
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(log), words) {
			return string(log)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the log has no %q", words)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
