package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/artifacts"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// The command line: what is asked for is printed, and mistakes are told.
func TestCommandLine(t *testing.T) {
	for name, c := range map[string]struct {
		args           []string
		exit           int
		stdout, stderr string
	}{
		"help":            {[]string{"--help"}, exitOK, "Exit status: 0", ""},
		"version":         {[]string{"--version"}, exitOK, "paseo-sandbox-broker ", ""},
		"unknown flag":    {[]string{"--docker"}, exitUsage, "", "usage: "},
		"argument":        {[]string{"start"}, exitUsage, "", `there is no argument "start"`},
		"relative prefix": {[]string{"--prefix", "x", "--check-config"}, exitConfig, "", "invalid_config: "},
		"no such prefix":  {[]string{"--prefix", "/nonexistent", "--check-config"}, exitConfig, "", "invalid_config: "},
	} {
		var stdout, stderr bytes.Buffer
		got := run(c.args, &stdout, &stderr)
		if got == exitNotRoot && c.exit == exitConfig {
			continue // not root: that comes first
		}
		if got != c.exit || !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) || (c.stderr == "") != (stderr.Len() == 0) {
			t.Errorf("%s: exit %d, %q, %q", name, got, &stdout, &stderr)
		}
	}
}

// Each kind of error has its exit status, and is printed as text or JSON.
func TestErrors(t *testing.T) {
	e := &wire.Error{Code: wire.CodeRootfsMissing, Message: "it is not there", Advice: "build it", Err: errors.New("cause")}
	var artifact error = errors.Join(&artifacts.Error{Err: e})
	for _, c := range []struct {
		err  error
		exit int
	}{
		{errors.New("any"), exitRuntime},
		{&wire.Error{Code: wire.CodeRootRequired}, exitNotRoot},
		{&wire.Error{Code: wire.CodeInvalidConfig}, exitConfig},
		{&wire.Error{Code: wire.CodeDiskUnavailable}, exitLimits},
		{&wire.Error{Code: wire.CodeLimitsUnavailable}, exitLimits},
		{artifact, exitArtifact},
		{&wire.Error{Code: wire.CodeBrokerRunning}, exitRunning},
	} {
		if got := status(c.err); got != c.exit {
			t.Errorf("%v: exit %d, want %d", c.err, got, c.exit)
		}
	}
	var text, asJSON bytes.Buffer
	report(&text, artifact, false)
	if got, want := text.String(), "rootfs_missing: it is not there: cause. build it\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	report(&asJSON, artifact, true)
	var got map[string]string
	if err := json.Unmarshal(asJSON.Bytes(), &got); err != nil || got["code"] != "rootfs_missing" || got["advice"] != "build it" {
		t.Errorf("got %q, %v", &asJSON, err)
	}
	text.Reset()
	report(&text, errors.New("any"), false)
	if !strings.HasPrefix(text.String(), "internal_error: any. ") {
		t.Errorf("got %q", &text)
	}
}
