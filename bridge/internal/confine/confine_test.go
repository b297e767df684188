package confine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/shared/staticbin"
	"golang.org/x/sys/unix"
)

// stranger is the user of the confined processes.
const stranger = 2_456_789

// attempt is one thing that a bridge that was taken over could try. It returns
// how the kernel answered, if it came back.
type attempt struct {
	try  func() error
	want error // nil: the process is killed
}

var attempts = map[string]attempt{
	"fork":             {raw(unix.SYS_CLONE, uintptr(unix.SIGCHLD)), unix.EPERM},
	"vfork":            {raw(unix.SYS_CLONE, uintptr(unix.SIGCHLD|unix.CLONE_VM|unix.CLONE_VFORK)), unix.EPERM},
	"thread in a user": {raw(unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_VM|unix.CLONE_FS|unix.CLONE_FILES|unix.CLONE_SIGHAND|unix.CLONE_SYSVSEM|unix.CLONE_THREAD), unix.EPERM},
	"clone3":           {raw(unix.SYS_CLONE3), unix.ENOSYS},
	"open":             {func() error { _, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0); return err }, unix.EPERM},
	"go exec":          {func() error { return exec.Command("/bin/true").Run() }, unix.EPERM},
	"execve":           {func() error { return unix.Exec("/bin/true", []string{"true"}, nil) }, nil},
	"execveat":         {raw(unix.SYS_EXECVEAT), nil},
	"mmap to execute": {func() error {
		_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_ANON|unix.MAP_PRIVATE)
		return err
	}, nil},
	"mprotect":          {raw(unix.SYS_MPROTECT), nil},
	"kill":              {raw(unix.SYS_KILL, 1, 0), nil},
	"tgkill another":    {raw(unix.SYS_TGKILL, 1, 1, 0), nil},
	"pidfd_open":        {raw(unix.SYS_PIDFD_OPEN, 1), nil},
	"ptrace":            {raw(unix.SYS_PTRACE, unix.PTRACE_TRACEME), nil},
	"process_vm_readv":  {raw(unix.SYS_PROCESS_VM_READV), nil},
	"socket":            {raw(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM), nil},
	"socketpair":        {raw(unix.SYS_SOCKETPAIR), nil},
	"connect":           {raw(unix.SYS_CONNECT), nil},
	"bind":              {raw(unix.SYS_BIND), nil},
	"unshare":           {raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER), nil},
	"setns":             {raw(unix.SYS_SETNS), nil},
	"mount":             {raw(unix.SYS_MOUNT), nil},
	"bpf":               {raw(unix.SYS_BPF), nil},
	"userfaultfd":       {raw(unix.SYS_USERFAULTFD), nil},
	"io_uring_setup":    {raw(unix.SYS_IO_URING_SETUP), nil},
	"keyctl":            {raw(unix.SYS_KEYCTL), nil},
	"perf_event_open":   {raw(unix.SYS_PERF_EVENT_OPEN), nil},
	"setuid":            {raw(unix.SYS_SETRESUID, 0, 0, 0), nil},
	"dumpable":          {func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) }, nil},
	"another filter":    {raw(unix.SYS_SECCOMP), nil},
	"limits":            {raw(unix.SYS_PRLIMIT64), unix.EPERM},
	"memfd":             {raw(unix.SYS_MEMFD_CREATE), nil},
	"link":              {raw(unix.SYS_LINKAT), nil},
	"owner of a signal": {raw(unix.SYS_FCNTL, 0, unix.F_SETOWN, 1), nil},
	"ioctl":             {raw(unix.SYS_IOCTL, 0, unix.TIOCSTI), nil},
	"grow a file":       {raw(unix.SYS_FALLOCATE, 0, 0, 0, 1), nil},
	"socket option":     {raw(unix.SYS_SETSOCKOPT, 0, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER), nil},
	"x32":               {raw(0x40000000|39, 0), nil},
	"work":              {work, errWorked},
}

func raw(number uintptr, args ...uintptr) func() error {
	var a [6]uintptr
	copy(a[:], args)
	return func() error {
		r, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
		if errno == 0 {
			if number == unix.SYS_CLONE && r == 0 {
				unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0) // a child
			}
			return errors.New("it was done")
		}
		return errno
	}
}

var errWorked = errors.New("it worked")

// work needs threads, the collector, timers and preemption.
func work() error {
	var threads sync.WaitGroup
	var stop atomic.Bool
	for range 16 {
		threads.Go(func() {
			runtime.LockOSThread()
			for !stop.Load() {
				_ = make([]byte, 1<<20)
			}
		})
		threads.Go(func() {
			for i := 0; !stop.Load(); i++ {
			}
		})
	}
	for range 20 {
		time.Sleep(time.Millisecond)
		debug.FreeOSMemory()
	}
	stop.Store(true)
	threads.Wait()
	return errWorked
}

// TestMain is the confined process too, in a static build: the race detector
// does what no bridge does.
func TestMain(m *testing.M) {
	if name, ok := strings.CutPrefix(os.Args[0], "confined "); ok {
		os.Exit(confined(name))
	}
	os.Exit(m.Run())
}

// confined makes one attempt, on a thread that was there before the filter,
// and says how the kernel answered.
func confined(name string) int {
	applied, done := make(chan bool), make(chan error)
	go func() {
		runtime.LockOSThread()
		<-applied
		done <- attempts[name].try()
	}()
	if err := Apply(); err != nil {
		fmt.Fprintln(os.Stderr, "apply:", err)
		return 1
	}
	close(applied)
	fmt.Fprint(os.Stderr, <-done)
	return 0
}

// R3: of a bridge that was taken over the kernel takes nothing but what a
// bridge does, and the process ends with the first attempt at more.
func TestAttempts(t *testing.T) {
	rootonly.Test(t)
	program, err := staticbin.Test()
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(filepath.Dir(program))
	exe, err := os.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	var names []string
	for name := range attempts {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if name == "x32" && runtime.GOARCH != "amd64" {
			continue
		}
		want := attempts[name].want
		said, died := run(t, exe, name)
		switch {
		case want == nil && died != unix.SIGSYS:
			t.Errorf("%s: the process was not killed: %v, %q", name, died, said)
		case want != nil && (died != 0 || !strings.Contains(said, want.Error())):
			t.Errorf("%s: %v, %q, want %q", name, died, said, want)
		}
	}
}

// run makes one attempt in a process of its own.
func run(t *testing.T, exe *os.File, name string) (said string, died syscall.Signal) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out strings.Builder
	cmd := exec.CommandContext(ctx, "/proc/self/fd/3")
	cmd.Args = []string{"confined " + name}
	cmd.Dir, cmd.Env, cmd.Stderr = "/", []string{}, &out
	cmd.ExtraFiles = []*os.File{exe}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
			died = status.Signal()
		}
	}
	return out.String(), died
}
