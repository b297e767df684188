package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/systemd"
	"git.jb.codes/jb/paseo-sandbox/shared/artifact/cache"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

const (
	unitName   = "paseo-sandbox-broker.service"
	unitFolder = "/etc/systemd/system/"
)

// In each round of a disaster so many inputs are sent, and so many bytes may be on
// their way there and back: what is left for later rounds keeps the agent going.
const (
	inputsPerRound = 20
	sentAhead      = 256 << 10
)

// perSession is how many descriptors systemd keeps for a session.
const perSession = 16

// brokerUnit runs the broker. It has no mount namespace of its own: the mounts
// that it pins must be there for the next one.
const brokerUnit = `[Unit]
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart=/usr/local/bin/paseo-sandbox-broker
ExecReload=/bin/sh -c "kill -HUP $MAINPID"
Restart=always
RestartSec=50ms
KillMode=process
Delegate=cpu memory pids
LimitNOFILE=65536
FileDescriptorStoreMax=64
Environment=FDSTORE=64
WatchdogSec=30
Sockets=paseo-sandbox-local.socket paseo-sandbox-admin.socket
`

func socketUnit(name, path string) string {
	return fmt.Sprintf("[Socket]\nListenStream=%s\nFileDescriptorName=%s\nSocketMode=0600\nDirectoryMode=0711\nService=%s\n", path, name, unitName)
}

// machine is a booted machine in which systemd runs the broker.
type machine struct {
	*systemd.Machine
	t   *testing.T
	ctx context.Context
}

// startMachine boots a machine with a broker, whose deployment is root's.
func startMachine(ctx context.Context, t *testing.T) *machine {
	t.Helper()
	rootonly.Test(t)
	m, err := systemd.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			said, err := m.Journal(context.Background(), unitName)
			t.Logf("the broker's journal: %v\n%s", err, withoutAudit(said))
		}
		if err := m.Close(); err != nil {
			t.Errorf("close the machine: %v", err)
		}
	})
	index, err := cache.Locate(cache.Dir())
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"/etc/paseo-sandbox/broker.toml":            tables(index) + "[bridge]\nfirst_uid = 2000000\nuid_count = 100\n",
		"/etc/paseo-sandbox/deployments/local.toml": "peer_uids = [0]\ndefault_profile = \"stdout\"\nmax_sessions = 4\n[workspaces.project]\nroot = \"/home/project\"\nuid = 1000\ngid = 1000\n" + echoProfiles,
		unitFolder + unitName:                       brokerUnit,
		unitFolder + "paseo-sandbox-local.socket":   socketUnit("local", "/run/paseo-sandbox/d/local/broker.sock"),
		unitFolder + "paseo-sandbox-admin.socket":   socketUnit("admin", "/run/paseo-sandbox/admin/broker.sock"),
		"/home/project/.keep":                       "",
	}
	for name, content := range files {
		if err := m.Write(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Install("/usr/local/bin", shipped(t)...); err != nil {
		t.Fatal(err)
	}
	if err := m.Boot(ctx); err != nil {
		t.Fatal(err)
	}
	booted := &machine{m, t, ctx}
	booted.do("chown", "1000:1000", "/home/project")
	booted.do("systemctl", "start", unitName)
	return booted
}

// withoutAudit leaves out what each poll adds.
func withoutAudit(said string) string {
	var b strings.Builder
	for line := range strings.Lines(said) {
		if !strings.Contains(line, "broker: audit: ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func tables(index *cache.Index) string {
	return fmt.Sprintf("[runsc]\npath = %q\nmanifest = %q\ndigest = %q\n[rootfs]\npath = %q\nmanifest = %q\ndigest = %q\n",
		index.Runsc.Path, index.Runsc.Manifest, index.Runsc.Digest, index.Rootfs.Path, index.Rootfs.Manifest, index.Rootfs.Digest)
}

func (m *machine) do(args ...string) string {
	m.t.Helper()
	out, err := m.Run(m.ctx, args...)
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

func (m *machine) show(property string) string {
	m.t.Helper()
	value, err := m.Show(m.ctx, unitName, property)
	if err != nil {
		m.t.Fatal(err)
	}
	return value
}

// broker connects to the broker of now.
func (m *machine) broker() *client.Broker {
	m.t.Helper()
	b, err := client.DialBroker(m.ctx, filepath.Join(m.Root(), "run/paseo-sandbox/d/local/broker.sock"))
	if err != nil {
		m.t.Fatal(err)
	}
	return b
}

func (m *machine) inspect(id wire.SessionID) wire.SessionInfo {
	m.t.Helper()
	b := m.broker()
	defer b.Close()
	info, err := b.Inspect(m.ctx, id)
	if err != nil {
		m.t.Fatal(err)
	}
	return info
}

// stored polls until systemd keeps so many descriptors.
func (m *machine) stored(want int) {
	m.t.Helper()
	poll(m.ctx, m.t, fmt.Sprintf("systemd keeps %d descriptors", want), func() bool { return m.show("NFileDescriptorStore") == strconv.Itoa(want) })
}

// disaster is something that happens to a broker and a bridge.
type disaster struct {
	name    string
	strike  func(m *machine, broker string, bridge uint64)
	bridges bool // the bridge dies
}

var disasters = []disaster{
	{"the broker is killed, and the bridge", func(m *machine, broker string, bridge uint64) {
		m.do("sh", "-c", fmt.Sprintf("kill -KILL %s %d", broker, bridge))
	}, true},
	{"the bridge is killed, and the broker", func(m *machine, broker string, bridge uint64) {
		m.do("sh", "-c", fmt.Sprintf("kill -KILL %d %s", bridge, broker))
	}, true},
	{"systemctl restart", func(m *machine, _ string, _ uint64) { m.do("systemctl", "restart", unitName) }, false},
	{"the bridge is stopped, then both are killed", func(m *machine, broker string, bridge uint64) {
		m.do("sh", "-c", fmt.Sprintf("kill -STOP %d && kill -KILL %s %d", bridge, broker, bridge))
	}, true},
	{"systemctl restart, and the bridge is killed", func(m *machine, _ string, bridge uint64) {
		m.do("sh", "-c", fmt.Sprintf("systemctl restart --no-block %s && kill -KILL %d", unitName, bridge))
	}, true},
}

// R33 R43 R48: where systemd runs the broker, broker and bridge die at the same
// moment in the middle of work, again and again, and the session goes on: no byte
// is lost, repeated or reordered in either direction, and its input still ends.
func TestSystemdKeepsSessions(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	rounds := systemdRounds()
	ctx, cancel := context.WithTimeout(t.Context(), deathsTimeout+time.Duration(rounds)*time.Minute/2)
	defer cancel()
	m := startMachine(ctx, t)
	b := m.broker()
	info, err := b.Create(ctx, client.CreateOptions{Workspace: "project", Profile: "stdout"})
	b.Close()
	if err != nil {
		t.Fatal(err)
	}
	m.stored(perSession)
	m.checkEnvironment(info)
	c := &exchange{socket: b.SessionSocket(info)}
	var want bytes.Buffer
	for i := range inputsPerRound * (rounds + 1) {
		input := bytes.Repeat(fmt.Appendf(nil, "%06d the quick brown fox jumps over the lazy dog\n", i), 1000)
		c.inputs = append(c.inputs, input)
		want.Write(input)
	}
	// Little is sent ahead of what has come back, so that each disaster comes in
	// the middle of work.
	var back atomic.Int64
	c.pace = func(ctx context.Context, input int) error {
		for input*len(c.inputs[0])-int(back.Load()) > sentAhead {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Millisecond):
			}
		}
		return nil
	}
	done := 0
	err = c.run(ctx, func(received int) {
		back.Store(int64(received))
		if done == rounds || received < (done+1)*want.Len()/(rounds+1) {
			return
		}
		m.suffer(disasters[done%len(disasters)], info)
		done++
	})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(c.got.Bytes(), want.Bytes()) {
		t.Errorf("the bytes differ: sent %d, got %d", want.Len(), c.got.Len())
	}
	if c.exit.Code != 0 || c.exit.Reason != wire.ReasonExited || c.exit.InputDelivered != uint64(want.Len()) || done != rounds {
		t.Errorf("exit %+v after %d rounds", c.exit, done)
	}
	if now := m.inspect(info.Session); now.SandboxPID != info.SandboxPID {
		t.Errorf("the sandbox was %d, is %d", info.SandboxPID, now.SandboxPID)
	}
	m.stored(perSession - 1) // without the input
	// The status follows each turn of the broker's loop.
	m.do("systemctl", "reload", unitName)
	poll(ctx, t, "the status is shown", func() bool { return m.show("StatusText") == "sessions: 0 running, 1 ended" })
	b = m.broker()
	defer b.Close()
	if err := b.Delete(ctx, info.Session); err != nil {
		t.Error(err)
	}
	m.stored(0)
	t.Logf("%d rounds, %d inputs sent again", done, c.duplicates)
}

// systemdRounds is how many disasters there are; soak runs have more.
func systemdRounds() int {
	if n, err := strconv.Atoi(os.Getenv("PASEO_SANDBOX_SYSTEMD_ROUNDS")); err == nil && n > 0 {
		return n
	}
	return len(disasters)
}

// suffer has the disaster happen, and waits until the session runs again.
func (m *machine) suffer(d disaster, info wire.SessionInfo) {
	m.t.Helper()
	before := m.inspect(info.Session)
	broker := m.show("MainPID")
	d.strike(m, broker, before.BridgePID)
	poll(m.ctx, m.t, d.name+": another broker", func() bool {
		return m.show("MainPID") != broker && m.show("ActiveState") == "active"
	})
	var now wire.SessionInfo
	defer func() {
		if m.t.Failed() {
			m.t.Logf("%s: the session was %+v, is %+v", d.name, before, now)
		}
	}()
	poll(m.ctx, m.t, d.name+": the session runs", func() bool {
		now = m.inspect(info.Session)
		if now.State == wire.StateUnattached || now.State == wire.StateExited {
			m.t.Fatalf("%s: the session is lost", d.name)
		}
		return now.State == wire.StateRunning && (now.BridgePID != before.BridgePID) == d.bridges
	})
}

// checkEnvironment: R18: what systemd tells the broker reaches no child of it.
func (m *machine) checkEnvironment(info wire.SessionInfo) {
	m.t.Helper()
	for name, pid := range map[string]uint64{"bridge": info.BridgePID, "sandbox": info.SandboxPID} {
		env := m.do("cat", fmt.Sprintf("/proc/%d/environ", pid))
		for _, v := range []string{"NOTIFY_SOCKET", "FDSTORE", "LISTEN_", "WATCHDOG_", "INVOCATION_ID"} {
			if strings.Contains(env, v) {
				m.t.Errorf("the environment of the %s has %s: %q", name, v, env)
			}
		}
	}
}
