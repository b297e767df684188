package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/e2e/story"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	story.RunIfDaemon()
	if os.Geteuid() != 0 {
		fmt.Println("not root: the end-to-end tests are skipped; run 'sudo make test' for all of them")
	}
	code := m.Run()
	if binDir != "" {
		os.RemoveAll(binDir)
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
// folder. A report of the detector ends a program and stands in its log.
func programs(t *testing.T) string {
	t.Helper()
	binOnce.Do(func() {
		if binDir, binErr = os.MkdirTemp("", "pss-bin-"); binErr != nil {
			return
		}
		cmd := exec.Command("go", "build", "-race", "-o", binDir+"/", "./broker/cmd/...", "./bridge/cmd/...", "./shared/cmd/...")
		cmd.Dir = ".."
		if out, err := cmd.CombinedOutput(); err != nil {
			binErr = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if binErr != nil {
		t.Fatal(binErr)
	}
	return filepath.Clean(binDir)
}
