package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/e2e/storm"
	"git.jb.codes/jb/paseo-sandbox/e2e/story"
	"git.jb.codes/jb/paseo-sandbox/e2e/turn"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	story.RunIfDaemon()
	storm.RunIfDaemon()
	turn.RunIfDaemon()
	if os.Geteuid() != 0 {
		fmt.Println("not root: the end-to-end tests are skipped; run 'sudo make test' for all of them")
	}
	code := m.Run()
	for _, dir := range []string{binDir, smallDir} {
		if dir != "" {
			os.RemoveAll(dir)
		}
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Println(err)
			code = 1
		}
	}
	os.Exit(code)
}

var (
	binOnce sync.Once
	binDir  string
	binErr  error
)

// programs builds the programs with the race detector, once, and returns their
// folder. A report of the detector ends a program and stands in its log. The
// bridge is built as it is shipped: its filter kills what the detector does.
func programs(t *testing.T) string {
	t.Helper()
	binOnce.Do(func() {
		if binDir, binErr = os.MkdirTemp("", "pss-bin-"); binErr != nil {
			return
		}
		binErr = build(os.Environ(), "-race", "./broker/cmd/...", "./shared/cmd/...")
		if binErr == nil {
			binErr = build(append(os.Environ(), "CGO_ENABLED=0"), "./bridge/cmd/...", "./e2e/cmd/paseo-sandbox-bridge-attacker", "./e2e/cmd/probe", "./e2e/cmd/workload")
		}
	})
	if binErr != nil {
		t.Fatal(binErr)
	}
	return filepath.Clean(binDir)
}

func build(env []string, args ...string) error {
	cmd := exec.Command("go", append([]string{"build", "-o", binDir + "/"}, args...)...)
	cmd.Dir, cmd.Env = "..", env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// installProgram puts one of the programs that run in sandboxes into a
// workspace's folder; it stays root's.
func installProgram(t *testing.T, name, folder string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(programs(t), name))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, name)
	if err := os.WriteFile(file, b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o755); err != nil {
		t.Fatal(err)
	}
}
