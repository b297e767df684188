package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// admin runs broker-admin.
func admin(t *testing.T, s *harness.System, args ...string) (exit int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(s.Program("broker-admin"), append([]string{"--prefix", s.Prefix}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var status *exec.ExitError
	if err != nil && !errors.As(err, &status) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// edit changes the deployment's file.
func edit(t *testing.T, s *harness.System, old, text string) {
	t.Helper()
	b, err := os.ReadFile(s.DeploymentFile())
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.ReplaceAll(string(b), old, text)
	if changed == string(b) {
		t.Fatalf("there is no %q in\n%s", old, b)
	}
	if err := os.WriteFile(s.DeploymentFile(), []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
}

// R12, R80: broker-admin and SIGHUP make a running broker take up its changed
// files; a running session goes on through it, and whoever lost access can't
// connect to it any more.
func TestRealReload(t *testing.T) {
	s, b := startReal(t)
	info := create(t, s, b, "patient")
	socket := b.SessionSocket(info)

	edit(t, s, "[workspaces.project]", "[workspaces.renamed]")
	if exit, out, errs := admin(t, s, "reload"); exit != 0 || out != "reloaded\n" || errs != "" {
		t.Fatalf("got %d, %q, %q", exit, out, errs)
	}
	if _, err := b.Create(t.Context(), client.CreateOptions{Workspace: "project"}); wire.CodeOf(err) != wire.CodeUnknownWorkspace {
		t.Errorf("a workspace that was removed: %v", err)
	}
	edit(t, s, "peer_uids = [0]", "colour = 1\npeer_uids = [0]")
	exit, out, errs := admin(t, s, "reload", "--json")
	if exit != 1 || out != "" || !strings.HasPrefix(errs, "invalid_config: ") || !strings.Contains(errs, harness.Deployment+".toml:1: the key colour") {
		t.Errorf("a bad configuration: got %d, %q, %q", exit, out, errs)
	}
	edit(t, s, "colour = 1\npeer_uids = [0]", "container = true\npeer_uids = [0]")
	if exit, out, errs = admin(t, s, "reload"); exit != 1 || out != "" || !strings.HasPrefix(errs, "restart_required: ") {
		t.Errorf("what needs a restart: got %d, %q, %q", exit, out, errs)
	}
	if i, err := b.Inspect(t.Context(), info.Session); err != nil || i.State != wire.StateRunning || i.BridgePID != info.BridgePID {
		t.Errorf("the session is %+v, %v", i, err)
	}

	edit(t, s, "container = true\npeer_uids = [0]", "peer_uids = [1000]")
	pid := s.BrokerPID()
	if err := unix.Kill(pid, unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		st, err := os.Stat(socket)
		if err != nil {
			t.Fatal(err)
		}
		if st.Sys().(*syscall.Stat_t).Uid == 1000 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("SIGHUP has no effect")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if exit, out, errs = admin(t, s, "reload", "--json"); exit != 0 || out != "{\n  \"reloaded\": true\n}\n" || errs != "" {
		t.Errorf("got %d, %q, %q", exit, out, errs)
	}
	if _, err := b.List(t.Context()); err == nil {
		t.Error("the connection of a user who was removed goes on")
	}
	if exit, out, errs = admin(t, s, "delete", string(info.Session)); exit != 0 || s.BrokerPID() != pid {
		t.Errorf("got %d, %q, %q", exit, out, errs)
	}
}

// R18: every descriptor of the broker, and of a session's bridge and reaper,
// but the standard streams is close-on-exec.
func TestRealCloseOnExec(t *testing.T) {
	s, b := startReal(t)
	info := create(t, s, b, "patient")
	pids := []int{s.BrokerPID(), int(info.BridgePID)}
	reapers := childrenOf(t, s.BrokerPID(), int(info.BridgePID))
	if len(reapers) == 0 {
		t.Fatal("the broker has no reaper")
	}
	for _, pid := range append(pids, reapers...) {
		for _, fd := range inheritable(t, pid) {
			t.Errorf("process %d would pass on %s", pid, fd)
		}
	}
	if err := b.Delete(t.Context(), info.Session); err != nil {
		t.Error(err)
	}
}

// childrenOf lists the children of a process, but for one.
func childrenOf(t *testing.T, parent, except int) []int {
	t.Helper()
	var found []int
	for _, dir := range glob(t, "/proc/[0-9]*") {
		b, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue // it has gone
		}
		var state string
		var ppid int
		if _, err := fmt.Sscan(string(b[bytes.LastIndexByte(b, ')')+1:]), &state, &ppid); err != nil {
			t.Fatal(err)
		}
		if pid, _ := strconv.Atoi(filepath.Base(dir)); ppid == parent && pid != except {
			found = append(found, pid)
		}
	}
	return found
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// inheritable lists descriptors beyond 2 without close-on-exec
// (proc_pid_fdinfo(5): the flags hold it).
func inheritable(t *testing.T, pid int) []string {
	t.Helper()
	var found []string
	for _, path := range glob(t, fmt.Sprintf("/proc/%d/fdinfo/*", pid)) {
		b, err := os.ReadFile(path)
		if n, _ := strconv.Atoi(filepath.Base(path)); err != nil || n < 3 {
			continue // it was closed
		}
		_, rest, _ := strings.Cut(string(b), "flags:")
		flags, err := strconv.ParseUint(strings.Fields(rest)[0], 8, 64)
		if err != nil {
			t.Fatal(err)
		}
		if flags&unix.O_CLOEXEC == 0 {
			to, _ := os.Readlink(strings.Replace(path, "fdinfo", "fd", 1))
			found = append(found, filepath.Base(path)+" "+to)
		}
	}
	return found
}
