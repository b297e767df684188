package e2e

import (
	"context"
	"encoding/json"
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

const reapingProfiles = `
[profiles.short]
kind = "program"
framing = "lines"
command = ["/bin/bash", "-c", "echo begun; cat"]
end_abandoned = "1s"

[profiles.watched]
kind = "program"
framing = "lines"
command = ["/bin/cat"]
end_abandoned = "2h"

[profiles.fleeting]
kind = "program"
framing = "lines"
command = ["/bin/true"]
delete_ended = "1s"

[profiles.released]
kind = "program"
framing = "lines"
command = ["/bin/echo", "done"]
delete_ended = "24h"
`

// reaping is a system with policies, and a connection to its broker.
type reaping struct {
	*testing.T
	ctx context.Context
	s   *harness.System
	b   *client.Broker
}

func (r *reaping) create(profile string) wire.SessionInfo {
	r.Helper()
	info, err := r.b.Create(r.ctx, client.CreateOptions{Workspace: "project", Profile: profile})
	if err != nil {
		r.Fatal(err)
	}
	return info
}

// until polls a session until it fits.
func (r *reaping) until(id wire.SessionID, what string, fits func(wire.SessionInfo, error) bool) wire.SessionInfo {
	r.Helper()
	for {
		info, err := r.b.Inspect(r.ctx, id)
		if fits(info, err) {
			return info
		}
		select {
		case <-r.ctx.Done():
			r.Fatalf("not in time: %s; it is %+v, %v", what, info, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func forgotten(_ wire.SessionInfo, err error) bool { return wire.CodeOf(err) == wire.CodeUnknownSession }

// attach attaches a writer.
func (r *reaping) attach(info wire.SessionInfo) *client.Session {
	r.Helper()
	c, err := client.DialSession(r.ctx, r.b.SessionSocket(info))
	if err != nil {
		r.Fatal(err)
	}
	if _, err := c.Attach(r.ctx, client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromOldest}); err != nil {
		r.Fatal(err)
	}
	return c
}

// exitOf reads to the exit record.
func (r *reaping) exitOf(c *client.Session) (exit wire.Exit, sequence uint64, text string) {
	r.Helper()
	for {
		record, err := c.Next(r.ctx)
		if err != nil {
			r.Fatal(err)
		}
		if record.Stream == wire.StreamExit {
			exit, err := wire.DecodeExit(record.Data)
			if err != nil {
				r.Fatal(err)
			}
			return exit, record.Sequence, text
		}
		text += string(record.Data)
	}
}

// admin runs broker-admin and returns what it prints.
func (r *reaping) admin(args ...string) string {
	r.Helper()
	out, err := exec.CommandContext(r.ctx, r.s.Program("broker-admin"), append([]string{"--prefix", r.s.Prefix}, args...)...).CombinedOutput()
	if err != nil {
		r.Fatalf("broker-admin %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func (r *reaping) dial() {
	r.Helper()
	b, err := client.DialBroker(r.ctx, r.s.BrokerSocket())
	if err != nil {
		r.Fatal(err)
	}
	r.b = b
	r.Cleanup(func() { b.Close() })
}

func startReaping(t *testing.T) *reaping {
	rootonly.Test(t)
	ctx, cancel := context.WithTimeout(t.Context(), deathsTimeout)
	t.Cleanup(cancel)
	r := &reaping{T: t, ctx: ctx, s: startSystem(t, harness.Options{Profiles: reapingProfiles})}
	r.dial()
	return r
}

// R35 R31: a session that no daemon wants is ended for that reason and keeps
// its output; one that has ended is deleted when its time is over, or when its
// writer has read the end and releases it. Nothing is left of those.
func TestReaping(t *testing.T) {
	r := startReaping(t)
	short, fleeting, released := r.create("short"), r.create("fleeting"), r.create("released")

	info := r.until(short.Session, "the abandoned session is ended", func(i wire.SessionInfo, err error) bool { return i.State == wire.StateExited })
	if info.Exit.Reason != wire.ReasonAbandoned || info.VacantMillis < 1000 {
		t.Errorf("got %+v", info)
	}
	c := r.attach(short)
	// A slow machine may end it before it has begun.
	if exit, _, text := r.exitOf(c); exit.Reason != wire.ReasonAbandoned || text != "begun\n" && text != "" {
		t.Errorf("its records end with %+v after %q", exit, text)
	}
	c.Close()
	r.until(fleeting.Session, "the ended session is deleted", forgotten)

	c = r.attach(released)
	_, sequence, text := r.exitOf(c)
	if text != "done\n" {
		t.Errorf("got %q", text)
	}
	if err := c.Ack(r.ctx, sequence); err != nil {
		t.Fatal(err)
	}
	r.until(released.Session, "it is seen to have ended", func(i wire.SessionInfo, err error) bool { return i.State == wire.StateExited })
	if err := c.Release(r.ctx); err != nil {
		t.Fatal(err)
	}
	r.until(released.Session, "the released session is deleted", forgotten)
	c.Close()

	for _, want := range []string{"reaped " + string(short.Session) + " abandoned", "reaped " + string(fleeting.Session) + " expired", "reaped " + string(released.Session) + " released"} {
		w := strings.Fields(want)
		awaitLog(r.ctx, t, r.s, "operation="+w[0]+" session="+w[1]+" decision=event code="+w[2])
	}
	if err := r.b.Delete(r.ctx, short.Session); err != nil {
		t.Fatal(err)
	}
	checkNothing(t, r.s)
}

// R35 R33: the operator sees whether a session has a writer, for how long it
// has had none, and what comes of it and when; a broker that is killed forgets
// none of that.
func TestVacancyIsVisible(t *testing.T) {
	r := startReaping(t)
	info := r.create("watched")
	c := r.attach(info)
	attached := r.until(info.Session, "it has a writer", func(i wire.SessionInfo, _ error) bool { return i.HasWriter })
	if attached.Due != "" || attached.VacantMillis != 0 {
		t.Errorf("with a writer it is %+v", attached)
	}
	if table := r.admin("sessions"); !strings.Contains(table, "attached") {
		t.Errorf("the table is\n%s", table)
	}
	c.Close()
	r.until(info.Session, "it has had none for a second", func(i wire.SessionInfo, _ error) bool { return i.VacantMillis > 1000 })
	if err := r.s.StopBroker(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := r.s.StartBroker(r.ctx); err != nil {
		t.Fatal(err)
	}
	r.dial()
	var rows []struct {
		Session      wire.SessionID
		HasWriter    bool
		VacantMillis uint64
		Due          wire.Due
		DueMillis    uint64
	}
	if err := json.Unmarshal([]byte(r.admin("--json", "sessions")), &rows); err != nil || len(rows) != 1 {
		t.Fatal(rows, err)
	}
	if row := rows[0]; row.HasWriter || row.VacantMillis < 1000 || row.Due != wire.DueEnd || row.DueMillis == 0 || row.DueMillis > 7_200_000 {
		t.Errorf("after the broker's death it is %+v", row)
	}
	if table := r.admin("sessions"); !strings.Contains(table, "none for ") || !strings.Contains(table, "ended in 1h") {
		t.Errorf("the table is\n%s", table)
	}
	// It goes on, and takes a writer.
	r.attach(info).Close()
	if err := r.b.Delete(r.ctx, info.Session); err != nil {
		t.Fatal(err)
	}
	checkNothing(t, r.s)
}

// R32: a session whose record is gone leaves nothing, its bridge and its
// sandbox included; what bears no session's id is listed by a dry run, which
// changes nothing, and removed by the next run.
func TestCollectLeftovers(t *testing.T) {
	r := startReaping(t)
	kept, lost := r.create("watched"), r.create("watched")
	if err := r.s.StopBroker(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	must(t, os.Remove(filepath.Join(r.s.Prefix, "var/sessions", string(lost.Session)+".json")))
	if err := r.s.StartBroker(r.ctx); err != nil {
		t.Fatal(err)
	}
	r.dial()
	for _, p := range []struct{ pid, start uint64 }{{lost.BridgePID, lost.BridgeStart}, {lost.SandboxPID, lost.SandboxStart}} {
		if harness.Alive(p.pid, p.start) {
			t.Errorf("process %d of the session without a record lives", p.pid)
		}
	}
	if _, err := r.b.Inspect(r.ctx, lost.Session); wire.CodeOf(err) != wire.CodeUnknownSession {
		t.Errorf("it is known: %v", err)
	}

	const id = "0123456789abcdef0123456789abcdef"
	spool, work := filepath.Join(r.s.Prefix, "var/spool", id), filepath.Join(r.s.Prefix, "var/rootfs/.import-1")
	must(t, os.Mkdir(spool, 0o700))
	must(t, os.MkdirAll(work+"/tree", 0o700))
	for _, run := range []struct {
		args []string
		want string
	}{
		{[]string{"gc", "--dry-run"}, "found"}, {[]string{"gc"}, "removed"}, {[]string{"gc"}, "nothing is left behind"},
	} {
		out := r.admin(run.args...)
		listed := strings.Contains(out, spool) && strings.Contains(out, "no_record") && strings.Contains(out, work)
		if !strings.Contains(out, run.want) || listed != (run.want != "nothing is left behind") || strings.Contains(out, string(kept.Session)) {
			t.Errorf("broker-admin %v prints\n%s", run.args, out)
		}
		for _, path := range []string{spool, work} {
			if _, err := os.Stat(path); (err == nil) != (run.want == "found") {
				t.Errorf("after %v: %v", run.args, err)
			}
		}
	}
	if info, err := r.b.Inspect(r.ctx, kept.Session); err != nil || info.State != wire.StateRunning || info.BridgePID != kept.BridgePID {
		t.Errorf("the session that is in order is %+v, %v", info, err)
	}
	r.attach(kept).Close()
	if err := r.b.Delete(r.ctx, kept.Session); err != nil {
		t.Fatal(err)
	}
	checkNothing(t, r.s)
}
