package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/rig"
	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// otherUID is a user without an account.
const otherUID = 54321

// build makes the program, where another user can execute it.
func build(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bridge")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "paseo-sandbox-bridge")
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

func start(t *testing.T, path string, unprivileged bool) (*exec.Cmd, *rig.Broker, *rig.Rig, *strings.Builder) {
	t.Helper()
	r := rig.New(t, rig.Options{})
	local, remote, err := fdpass.Pair()
	if err != nil {
		t.Fatal(err)
	}
	end := os.NewFile(uintptr(remote), "link")
	cmd := exec.Command(path)
	cmd.ExtraFiles = []*os.File{end}
	var log strings.Builder
	cmd.Stderr = &log
	if unprivileged && os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUID, Gid: otherUID}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end.Close()
	b := r.Serve(local)
	t.Cleanup(b.Close)
	return cmd, b, r, &log
}

func exitStatus(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	timer := time.AfterFunc(rig.Timeout, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode()
}

// R3, R5: the program runs as a user without rights, gives up what is left,
// outlives its broker, and ends cleanly on SIGTERM.
func TestProgram(t *testing.T) {
	cmd, b, r, log := start(t, build(t), true)
	b.WaitReady()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapInh:\t0000000000000000"} {
		if !strings.Contains(string(status), line+"\n") {
			t.Errorf("the process has not %q", line)
		}
	}
	c := r.Writer()
	b.Close()
	if _, err := r.AgentStdout.WriteString("after the broker\n"); err != nil {
		t.Fatal(err)
	}
	c.Expect(wire.StreamStdout, []byte("after the broker\n"))
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := exitStatus(t, cmd); got != exitOK {
		t.Fatalf("exit status %d\n%s", got, log)
	}
	if strings.Contains(log.String(), "after the broker") {
		t.Error("the log holds what the agent printed")
	}
}

// R3: the bridge never runs as root. Without root the other refusal is tried:
// a descriptor 3 that is no socket.
func TestRefusals(t *testing.T) {
	path := build(t)
	if os.Getuid() == 0 {
		cmd := exec.Command(path)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != exitPrivileged || !strings.Contains(string(out), "permission_denied") {
			t.Fatalf("exit status %d\n%s", got, out)
		}
	}
	cmd := exec.Command(path)
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUID, Gid: otherUID}}
	}
	out, _ := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != exitFailed || !strings.Contains(string(out), "invalid_config") {
		t.Fatalf("exit status %d\n%s", got, out)
	}
}
