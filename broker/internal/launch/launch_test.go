package launch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/shared/staticbin"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

const testTimeout = 60 * time.Second

// targetName is what the tests' program calls itself when it is launched.
const targetName = "launch-test-target"

// TestMain is the launched program too, in a static build of it: it says over
// its socket that it runs, then what it tried.
func TestMain(m *testing.M) {
	RunIfStub()
	if os.Args[0] == targetName {
		os.Exit(target())
	}
	if err := process.SealInherited(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func target() int {
	conn, err := fdpass.Adopt(3)
	if err != nil {
		return 1
	}
	said := fmt.Sprintf("%q %q", os.Environ(), os.Args)
	for {
		if err := fdpass.Send(conn, []byte(said)); err != nil {
			return 1
		}
		command, _, err := fdpass.Receive(conn, 64)
		if err != nil {
			return 0
		}
		said = try(string(command))
	}
}

// try makes one attempt at something that is fenced by more than one fence.
func try(what string) string {
	switch what {
	case "execute another":
		return fmt.Sprint(unix.Exec("/bin/true", []string{"true"}, nil))
	case "open":
		_, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0)
		return fmt.Sprint(err)
	case "fork":
		pid, _, errno := unix.RawSyscall(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0)
		if errno == 0 && pid == 0 {
			unix.Exit(0)
		}
		return fmt.Sprint(errno)
	case "become root":
		return fmt.Sprint(unix.Setresuid(0, 0, 0))
	}
	return "what?"
}

// launched is a process of Start's, with our end of its socket.
type launched struct {
	*process.Process
	say func(string) string
}

func start(t *testing.T) launched {
	t.Helper()
	rootonly.Test(t)
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	program, err := staticbin.Test()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(filepath.Dir(program)) })
	exe, err := unix.Open(program, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(exe)
	local, remote, err := fdpass.Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { local.Close() })
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(null)
	p, err := Start(Options{Args: []string{targetName}, Executable: exe, UID: 2000001, GID: 2000002, Files: []int{null, null, null, remote}})
	unix.Close(remote)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	t.Cleanup(func() { p.Kill(ctx) })
	deadline, _ := ctx.Deadline()
	local.SetDeadline(deadline)
	receive := func() string {
		payload, _, err := fdpass.Receive(local, 1<<16)
		if err != nil {
			t.Fatal(err)
		}
		return string(payload)
	}
	if got, want := receive(), fmt.Sprintf("[] [%q]", targetName); got != want {
		t.Errorf("environment and arguments are %s, want %s", got, want)
	}
	return launched{p, func(command string) string {
		if err := fdpass.Send(local, []byte(command)); err != nil {
			t.Fatal(err)
		}
		return receive()
	}}
}

func (l launched) file(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(l.ID().PID), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// R3: a launched process runs as its own user, without groups, capabilities,
// new privileges or network, under a filter and limits, with the descriptors
// that it was given and no more.
func TestLaunchedProcess(t *testing.T) {
	rootonly.Test(t)
	groups, err := unix.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Setgroups([]int{4711}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Setgroups(groups) })
	p := start(t)
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.ID().PID))
	if err != nil || len(threads) == 0 {
		t.Fatal(threads, err)
	}
	for _, thread := range threads {
		status := p.file(t, filepath.Join("task", filepath.Base(thread), "status"))
		for _, want := range []string{
			"Uid:\t2000001\t2000001\t2000001\t2000001\n", "Gid:\t2000002\t2000002\t2000002\t2000002\n",
			"Groups:\t \n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n", "Seccomp_filters:\t1\n", "Umask:\t0077\n",
			"CapInh:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n",
			"CapBnd:\t0000000000000000\n", "CapAmb:\t0000000000000000\n",
		} {
			if !strings.Contains(status, want) {
				t.Errorf("a thread has not %q:\n%s", want, status)
			}
		}
	}
	have := strings.Fields(p.file(t, "limits"))
	for _, want := range []string{"core file size 0 0", "open files 1024 1024", "processes 512 512", "locked memory 0 0", "msgqueue size 0 0"} {
		if !strings.Contains(strings.Join(have, " "), want) {
			t.Errorf("the limits have not %q: %s", want, have)
		}
	}
	if dev := p.file(t, "net/dev"); strings.Count(dev, ":") != 1 || !strings.Contains(dev, "lo:") {
		t.Errorf("network interfaces:\n%s", dev)
	}
	for _, ns := range []string{"net", "ipc"} {
		ours, _ := os.Readlink("/proc/self/ns/" + ns)
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p.ID().PID, ns))
		if err != nil || ours == theirs {
			t.Errorf("its %s namespace is %s, %v; ours is %s", ns, theirs, err, ours)
		}
	}
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.ID().PID)); cwd != "/" {
		t.Errorf("its working directory is %s, %v", cwd, err)
	}
	if names := inherited(t, p.ID().PID); len(names) != 0 {
		t.Errorf("inherited descriptors: %v", names)
	}
	if own := strings.Contains(p.file(t, "status"), "NoNewPrivs:\t1"); !own || restricted(t) {
		t.Error("the restrictions are not the child's alone")
	}
}

// restricted reports whether one of our own threads has no new privileges.
func restricted(t *testing.T) bool {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if b, err := os.ReadFile(task); err == nil && strings.Contains(string(b), "NoNewPrivs:\t1") {
			return true
		}
	}
	return false
}

// inherited lists descriptors beyond the first four that are not the child's
// own event descriptors or its duplicate of the socket.
func inherited(t *testing.T, pid int) []string {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil || len(e.Name()) == 1 && e.Name() <= "3" {
			continue
		}
		if !strings.HasPrefix(target, "anon_inode:[event") && !strings.HasPrefix(target, "socket:") {
			names = append(names, e.Name()+" "+target)
		}
	}
	return names
}

// R3: before its own first instruction a launched process can open no path,
// execute nothing and make no process.
func TestFences(t *testing.T) {
	p := start(t)
	denied := "operation not permitted"
	for what, want := range map[string]string{"open": denied, "fork": denied, "become root": denied, "execute another": "permission denied"} {
		if what == "execute another" && !HasLandlock() {
			continue
		}
		if got := p.say(what); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
}

// Landlock handles all that the kernel knows of, and the kernel knows at least
// what its first version had.
func TestRights(t *testing.T) {
	if r := rights(); HasLandlock() && r.Handled_access_fs&(1<<13-1) != 1<<13-1 {
		t.Errorf("the rights are %+v", r)
	}
}

// Root is refused before anything starts, and a program that can't be executed
// is said to be so.
func TestRefusals(t *testing.T) {
	for _, o := range []Options{{Args: []string{"none"}, UID: 0, GID: 1}, {Args: []string{"none"}, UID: 1, GID: 0}} {
		if p, err := Start(o); err == nil {
			p.Close()
			t.Errorf("%+v was started", o)
		}
	}
	rootonly.Test(t)
	file, err := os.Create(filepath.Join(t.TempDir(), "program"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	p, err := Start(Options{Args: []string{"none"}, Executable: int(file.Fd()), UID: 1000, GID: 1000})
	if err == nil || !strings.Contains(err.Error(), "execute the program: permission denied") {
		t.Errorf("got %v, %v", p, err)
	}
}
