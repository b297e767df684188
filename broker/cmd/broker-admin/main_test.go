package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// The command line: mistakes are usage, failures say what to do, and nothing
// is coloured.
func TestCommandLine(t *testing.T) {
	prefix := t.TempDir()
	for name, c := range map[string]struct {
		args   []string
		exit   int
		stderr string
	}{
		"unknown command":       {[]string{"docker"}, exitUsage, "usage: unknown command"},
		"unknown flag":          {[]string{"sessions", "--colour"}, exitUsage, "usage: unknown flag"},
		"argument too many":     {[]string{"sessions", "x"}, exitUsage, "usage: there is no argument"},
		"argument too few":      {[]string{"delete"}, exitUsage, "usage: give one session"},
		"relative prefix":       {[]string{"--prefix", "x", "sessions"}, exitFailed, "invalid_config: "},
		"no broker":             {[]string{"--prefix", prefix, "sessions"}, exitFailed, "broker_unreachable: "},
		"no broker, deleting":   {[]string{"--prefix", prefix, "delete", "0"}, exitFailed, "broker_unreachable: "},
		"no broker, reloading":  {[]string{"--prefix", prefix, "reload"}, exitFailed, "broker_unreachable: "},
		"no broker, collecting": {[]string{"--prefix", prefix, "gc", "--dry-run"}, exitFailed, "broker_unreachable: no broker runs here"},
		"reloading one":         {[]string{"reload", "home"}, exitUsage, "usage: there is no argument"},
		"no configuration":      {[]string{"--prefix", prefix, "deployment", "list"}, exitFailed, "invalid_config: "},
		"help":                  {[]string{"--help"}, 0, ""},
		"completion":            {[]string{"completion", "bash"}, 0, ""},
	} {
		var stdout, stderr bytes.Buffer
		got := run(c.args, &stdout, &stderr)
		if got != c.exit || !strings.HasPrefix(stderr.String(), c.stderr) || strings.Contains(stderr.String(), "\x1b") {
			t.Errorf("%s: exit %d, %q", name, got, &stderr)
		}
	}
}

// Where nothing is set up, the doctor fails, names each thing that is missing
// and says what to do; what the host has is well.
func TestDoctorOnNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: the doctor needs it")
	}
	var stdout, stderr bytes.Buffer
	if got := run([]string{"--prefix", t.TempDir(), "doctor", "--json"}, &stdout, &stderr); got != exitFailed {
		t.Errorf("exit %d, %s", got, &stderr)
	}
	var report struct {
		OK     bool      `json:"ok"`
		Checks []finding `json:"checks"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		t.Fatalf("%v in %s", err, &stdout)
	}
	want := map[string]bool{
		"root": true, "kernel": true, "path resolution": true, "mount cloning": true, "namespaces": true, "limits": true,
		"process descriptors": true, "memory files": true, "leftovers": true,
		"configuration": false, "folders": false, "audit": false, "spool": false, "disk": false, "disks of homes": false, "runsc, bridge and rootfs": false, "broker": false,
	}
	if report.OK || len(report.Checks) != len(want) {
		t.Errorf("got %+v", report)
	}
	for _, f := range report.Checks {
		ok, known := want[f.Check]
		if !known || f.OK != ok || f.Detail == "" {
			t.Errorf("got %+v", f)
		}
		if !f.OK && f.Advice == "" && !strings.Contains(f.Detail, "not checked") {
			t.Errorf("%s fails without advice: %s", f.Check, f.Detail)
		}
	}
}
