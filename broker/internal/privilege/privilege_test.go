package privilege

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// TestMain is the process that confines itself too.
func TestMain(m *testing.M) {
	if os.Args[0] == "confined" {
		os.Exit(confined())
	}
	os.Exit(m.Run())
}

// confined says what it is: itself, its threads, and a child.
func confined() int {
	if err := Confine(); err != nil {
		fmt.Println(wire.CodeOf(err), err)
		return 1
	}
	fmt.Println("pid", os.Getpid(), os.Args, os.Getenv("LISTEN_FDS"))
	if _, err := unix.FcntlInt(3, unix.F_GETFD, 0); err != nil {
		fmt.Println("descriptor 3:", err)
	}
	tasks, _ := filepath.Glob("/proc/self/task/*/status")
	for _, task := range tasks {
		b, _ := os.ReadFile(task)
		fmt.Printf("%s", b)
	}
	child, err := exec.Command("/bin/cat", "/proc/self/status").Output()
	fmt.Printf("%s%v\n", child, err)
	return 0
}

// start runs the confined process, on a thread that lacks the capability
// without, unless it is negative.
func start(t *testing.T, without int, ambient ...uintptr) (pid int, said string) {
	t.Helper()
	rootonly.Test(t)
	extra, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer extra.Close()
	var out strings.Builder
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"confined", "and", "arguments"}
	cmd.Env = []string{"LISTEN_FDS=1"}
	cmd.Stdout, cmd.ExtraFiles = &out, []*os.File{extra}
	cmd.SysProcAttr = &syscall.SysProcAttr{AmbientCaps: ambient}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with its goroutine
		if without >= 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(without), 0, 0, 0); err != nil {
				started <- err
				return
			}
		}
		started <- cmd.Start()
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	return cmd.Process.Pid, out.String()
}

// wanted is the mask that /proc shows.
func wanted() string {
	var want uint64
	for _, n := range needed {
		want |= 1 << n.number
	}
	return fmt.Sprintf("%016x", want)
}

// R2, R20: on all threads, and in what it starts, the process has what it needs
// and nothing else, whatever it was given; it is the same process, with its
// arguments, environment and descriptors.
func TestConfine(t *testing.T) {
	for name, ambient := range map[string][]uintptr{"plain": nil, "with ambient capabilities": {unix.CAP_NET_RAW, unix.CAP_KILL}} {
		pid, said := start(t, -1, ambient...)
		if first := fmt.Sprintf("pid %d [confined and arguments] 1\n", pid); !strings.HasPrefix(said, first) || strings.Contains(said, "descriptor 3") {
			t.Errorf("%s: said %q, want %q", name, said, first)
		}
		// Two threads at least and the child.
		for set, want := range map[string]string{"CapEff": wanted(), "CapPrm": wanted(), "CapBnd": wanted(), "CapInh": "0000000000000000", "CapAmb": "0000000000000000"} {
			all, right := strings.Count(said, set+":"), strings.Count(said, set+":\t"+want+"\n")
			if all < 3 || all != right {
				t.Errorf("%s: %s is %s %d times of %d:\n%s", name, set, want, right, all, said)
			}
		}
		if !strings.Contains(said, "Name:\tconfined\n") {
			t.Errorf("%s: the name is lost", name)
		}
	}
}

// R71: a capability that is missing is named.
func TestMissing(t *testing.T) {
	for _, n := range needed {
		if _, said := start(t, int(n.number)); !strings.HasPrefix(said, string(wire.CodeRootRequired)) || !strings.Contains(said, "CAP_"+n.name) {
			t.Errorf("without %s: %q", n.name, said)
		}
	}
}
