package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/installer/internal/setup"
)

const asSetup = "PASEO_SANDBOX_TEST_AS_SETUP"

// The test binary is the command itself when the variable is set.
func TestMain(m *testing.M) {
	if os.Getenv(asSetup) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runSetup returns the exit status and, with --json, the result.
func runSetup(t *testing.T, attr *syscall.SysProcAttr, args ...string) (int, result) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), asSetup+"=1")
	cmd.SysProcAttr = attr
	var out, diagnostics bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diagnostics
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	var res result
	if out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), &res); err != nil {
			t.Fatalf("%v in %q; stderr %q", err, out.String(), diagnostics.String())
		}
	}
	return cmd.ProcessState.ExitCode(), res
}

// Wrong usage exits 2 before anything happens.
func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"--bogus"}, {"extra"}, {"--check", "--force"}} {
		if status, _ := runSetup(t, nil, args...); status != 2 {
			t.Errorf("%v exits %d", args, status)
		}
	}
	if status, _ := runSetup(t, nil, "--help"); status != 0 {
		t.Errorf("--help exits %d", status)
	}
}

// --check reports what is missing and changes nothing.
func TestCheckEmptyCache(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	status, res := runSetup(t, nil, "--json", "--check", "--source=../..", "--cache="+dir)
	if status != 1 || res.Error == nil || res.Error.Code != setup.CodeNotReady || len(res.NotReady) != 2 || len(res.Tools) == 0 {
		t.Errorf("exit %d, %+v, %+v", status, res, res.Error)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the cache was made: %v", err)
	}
}

// A source folder that is none is a typed error.
func TestWrongSource(t *testing.T) {
	status, res := runSetup(t, nil, "--json", "--source="+t.TempDir(), "--cache="+t.TempDir())
	if status != 1 || res.Error == nil || res.Error.Code != setup.CodeRecipe || res.Error.Advice == "" {
		t.Errorf("exit %d, %+v", status, res.Error)
	}
}

// Without root it says what needs root, and changes nothing.
func TestNotRoot(t *testing.T) {
	attr := &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		// Uid 0 is not mapped in a user namespace without a map: nobody there.
		attr.Cloneflags = syscall.CLONE_NEWUSER
	}
	dir := filepath.Join(t.TempDir(), "cache")
	status, res := runSetup(t, attr, "--json", "--source=../..", "--cache="+dir)
	if status != 1 || res.Error == nil || res.Error.Code != setup.CodeNotRoot || res.Error.Advice == "" {
		t.Errorf("exit %d, %+v", status, res.Error)
	}
}
