package main

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// R19, R80: an audit file tells of a session's whole life, over a broker that
// is killed, and broker-admin reads it.
func TestRealAuditFile(t *testing.T) {
	rootonly.Test(t)
	s, b := startConfigured(t, "\n[audit]\nfile = \""+t.TempDir()+"/log/audit.log\"\n")
	info := create(t, s, b, "patient")
	if err := s.StopBroker(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := s.StartBroker(t.Context()); err != nil {
		t.Fatal(err)
	}
	b = connect(t, s)
	if _, err := b.Terminate(t.Context(), info.Session, 0); err != nil {
		t.Fatal(err)
	}
	awaitExit(t, b, info.Session, func(e wire.Exit) bool { return e.Reason == wire.ReasonTerminated })
	if err := b.Delete(t.Context(), info.Session); err != nil {
		t.Fatal(err)
	}
	if err := s.StopBroker(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, s.Program("broker-admin"), "--prefix", s.Prefix, "audit", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(out)) {
		for _, operation := range []string{"start", "create", "recovered", "terminateSession", "ended", "deleteSession", "stop", "broken"} {
			if strings.Contains(line, `"operation":"`+operation+`"`) || operation == "broken" && strings.Contains(line, `"broken":`) {
				got = append(got, operation)
				about := operation == "start" || operation == "stop"
				if !about && !strings.Contains(line, `"session":"`+string(info.Session)+`"`) {
					t.Errorf("got %s", line)
				}
			}
		}
	}
	want := []string{"start", "create", "start", "recovered", "ended", "terminateSession", "deleteSession", "stop"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q\nin %s", got, want, out)
	}
}
