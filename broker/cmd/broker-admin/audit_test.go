package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// audited is a prefix whose configuration has the given end; %s in it is the
// prefix.
func audited(t *testing.T, config string) string {
	t.Helper()
	rootonly.Test(t)
	prefix, err := os.MkdirTemp("", "admin-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(prefix) })
	pin := "path = \"/nonexistent\"\nmanifest = \"/nonexistent\"\ndigest = \"sha256:" + strings.Repeat("0", 64) + "\"\n"
	for name, text := range map[string]string{
		"broker.toml":           "[runsc]\n" + pin + "[rootfs]\n" + pin + "[bridge]\nfirst_uid = 2000000\nuid_count = 1000\n" + strings.ReplaceAll(config, "%s", prefix),
		"deployments/home.toml": "peer_uids = [1000]\ndefault_profile = \"pi\"\n[profiles.pi]\nkind = \"pi\"\n[workspaces.w]\nroot = \"/srv/w\"\nuid = 1000\ngid = 1000\n",
	} {
		if err := os.MkdirAll(prefix+"/etc/deployments", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(prefix+"/etc/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return prefix
}

const ownFile = "[audit]\nfile = \"%s/log/audit.log\"\n"

// record writes entries into the audit of the prefix, in files so short that
// each holds a few.
func record(t *testing.T, prefix string, entries ...audit.Entry) {
	t.Helper()
	trail, err := audit.Open(registry.Audit{File: prefix + "/log/audit.log", MaxSize: 800, Files: 9}, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		trail.Record(e)
	}
	if err := trail.Close(); err != nil {
		t.Fatal(err)
	}
}

func entry(deployment, session string, err error) audit.Entry {
	return audit.Entry{UID: 1000, Deployment: deployment, Operation: "test", Session: session, Workspace: "w", Duration: time.Millisecond}.Decided(err)
}

// shown runs the command and returns the sessions that it shows.
func shown(t *testing.T, prefix string, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if got := run(append([]string{"--prefix", prefix, "audit", "--json"}, args...), &stdout, &stderr); got != 0 {
		t.Errorf("%q: exit %d, %s", args, got, &stderr)
	}
	var sessions []string
	for line := range strings.Lines(stdout.String()) {
		var l struct{ Session, Broken, Why string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		if l.Why != "" {
			l.Session = "!" + l.Broken
		}
		sessions = append(sessions, l.Session)
	}
	return strings.Join(sessions, " ")
}

// R19, R80: the operator sees the audit across its files, all or what is asked
// for, and what is broken always.
func TestAudit(t *testing.T) {
	prefix := audited(t, ownFile)
	denied := &wire.Error{Code: wire.CodePermissionDenied}
	record(t, prefix, entry("home", "a1", nil), entry("home", "a2", denied), entry("work", "b1", nil), entry("(admin)", "b2", &wire.Error{Code: wire.CodeInternal}))
	f, err := os.OpenFile(prefix+"/log/audit.log", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("brok\x1b[2Jen\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	record(t, prefix, entry("home", "a3", nil), entry("home", "a4", nil), entry("home", "a5", denied))
	const broken = "!brok\x1b[2Jen"
	for args, want := range map[string]string{
		"":                                "a1 a2 b1 b2 " + broken + " a3 a4 a5",
		"--deployment home":               "a1 a2 " + broken + " a3 a4 a5",
		"--session b":                     "b1 b2 " + broken,
		"--denied":                        "a2 b2 " + broken + " a5",
		"-n 2":                            "a4 a5",
		"--denied --deployment home -n 1": "a5",
		"--since 1h":                      "a1 a2 b1 b2 " + broken + " a3 a4 a5",
		"--since 2200-01-01":              broken,
		"--since 2001-02-03T04:05:06Z":    "a1 a2 b1 b2 " + broken + " a3 a4 a5",
	} {
		if got := shown(t, prefix, strings.Fields(args)...); got != want {
			t.Errorf("audit %s: got %q, want %q", args, got, want)
		}
	}
	var stdout, stderr bytes.Buffer
	if got := run([]string{"--prefix", prefix, "audit"}, &stdout, &stderr); got != 0 {
		t.Errorf("exit %d, %s", got, &stderr)
	}
	for _, want := range []string{"TIME  ", "permission_denied w/- 1ms\n", "  deny    ", "BROKEN  \"brok\\x1b[2Jen\"", "(admin)"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("%q is not in\n%s", want, &stdout)
		}
	}
	if strings.Contains(stdout.String(), "\x1b") {
		t.Errorf("it would command a terminal: %q", &stdout)
	}
}

// R80: where the audit is in the log, or the command is wrong, the operator is
// told what to do.
func TestAuditElsewhere(t *testing.T) {
	prefix := audited(t, "")
	for args, want := range map[string]string{
		"audit":               "audit_unavailable: the audit has no file of its own, it is part of the broker's log. run journalctl -u ",
		"audit --since never": "usage: --since ",
		"audit -n -1":         "usage: -n ",
	} {
		var stdout, stderr bytes.Buffer
		if got := run(append([]string{"--prefix", prefix}, strings.Fields(args)...), &stdout, &stderr); got == 0 || !strings.HasPrefix(stderr.String(), want) {
			t.Errorf("%s: exit %d, %q, want %q", args, got, &stderr, want)
		}
	}
}

// R80: following goes on across rotations and ends with Ctrl-C.
func TestAuditFollow(t *testing.T) {
	prefix := audited(t, ownFile)
	record(t, prefix, entry("home", "n0", nil), entry("home", "n1", nil))
	in, out := io.Pipe()
	exit := make(chan int, 1)
	var stderr bytes.Buffer
	go func() {
		exit <- run([]string{"--prefix", prefix, "audit", "-f", "-n", "1", "--json"}, out, &stderr)
		out.Close()
	}()
	lines := bufio.NewScanner(in)
	watchdog := time.AfterFunc(time.Minute, func() { in.CloseWithError(io.ErrUnexpectedEOF) })
	defer watchdog.Stop()
	for i := 1; i < 20; i++ {
		if i > 1 {
			record(t, prefix, entry("home", fmt.Sprint("n", i), nil))
		}
		if want := fmt.Sprintf(`"session":"n%d"`, i); !lines.Scan() || !strings.Contains(lines.Text(), want) {
			t.Fatalf("got %q, %v, want %s", lines.Text(), lines.Err(), want)
		}
	}
	// Its handler has been there since before the first line.
	if err := unix.Kill(os.Getpid(), unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	if lines.Scan() {
		t.Errorf("and then %q", lines.Text())
	}
	if got := <-exit; got != 0 || stderr.Len() > 0 {
		t.Errorf("exit %d, %s", got, &stderr)
	}
}

// R80: the doctor says whether the audit can be written.
func TestDoctorAudit(t *testing.T) {
	prefix := audited(t, ownFile)
	record(t, prefix, entry("home", "n0", nil))
	look := func() finding {
		var stdout, stderr bytes.Buffer
		run([]string{"--prefix", prefix, "doctor", "--json"}, &stdout, &stderr)
		var report struct{ Checks []finding }
		if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
			t.Fatalf("%v in %s", err, &stdout)
		}
		for _, f := range report.Checks {
			if f.Check == "audit" {
				return f
			}
		}
		t.Fatalf("there is no check of the audit in %s", &stdout)
		return finding{}
	}
	if f := look(); !f.OK || !strings.Contains(f.Detail, prefix+"/log/audit.log") {
		t.Errorf("got %+v", f)
	}
	for name, spoil := range map[string]func() error{
		"mode of the file":   func() error { return os.Chmod(prefix+"/log/audit.log", 0o644) },
		"mode of the folder": func() error { return os.Chmod(prefix+"/log", 0o777) },
		"no room": func() error {
			return unix.Mount("tmpfs", prefix+"/log", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64k,mode=0700")
		},
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		f := look()
		if name == "no room" {
			if err := unix.Unmount(prefix+"/log", unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
		if f.OK || f.Advice == "" {
			t.Errorf("%s: got %+v", name, f)
		}
		if err := os.Chmod(prefix+"/log", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(prefix+"/log/audit.log", 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if f := look(); !f.OK {
		t.Errorf("got %+v", f)
	}
}
