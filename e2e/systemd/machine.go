package systemd

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/artifact/cache"
)

const (
	bootTimeout  = 90 * time.Second
	stopTimeout  = 20 * time.Second
	pollInterval = 20 * time.Millisecond
	// powerOff is the signal that ends a systemd in order (systemd(1),
	// SIGRTMIN+4).
	powerOff = syscall.Signal(34 + 4)
)

//go:embed boot.sh
var bootScript string

// masked are units that would touch the host: its kernel's settings, its
// terminals, its /dev.
var masked = []string{
	"dev-hugepages.mount", "dev-mqueue.mount", "getty.target", "kmod-static-nodes.service", "proc-sys-fs-binfmt_misc.automount",
	"sys-fs-fuse-connections.mount", "sys-kernel-config.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount",
	"systemd-binfmt.service", "systemd-initctl.socket", "systemd-journald-audit.socket", "systemd-journald-dev-log.socket", "systemd-modules-load.service",
	"systemd-random-seed.service", "systemd-sysctl.service", "systemd-tmpfiles-setup-dev.service",
}

// Machine is a systemd that was booted, or will be.
type Machine struct {
	dir    string
	groups []string
	// process is systemd, and init its pid on the host, which is 0 before and
	// after its life.
	process *os.Process
	init    int
	exited  chan error
	said    bytes.Buffer // systemd's own words; to be read once it has exited
}

// New makes a machine in a temporary folder. Nothing runs yet: its files can be
// written below Path. It needs root, and what make setup-for-tests builds.
func New() (*Machine, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("root is needed to boot a systemd; run it with sudo")
	}
	dir, err := os.MkdirTemp("", "pss-machine-")
	if err != nil {
		return nil, err
	}
	m := &Machine{dir: dir, exited: make(chan error, 1)}
	if err := m.prepare(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return m, nil
}

func (m *Machine) prepare() error {
	for _, d := range []string{"root", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(m.dir, d), 0o755); err != nil {
			return err
		}
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return err
	}
	for name, content := range map[string]string{
		"/etc/machine-id":                      hex.EncodeToString(id[:]) + "\n",
		"/etc/systemd/journald.conf.d/it.conf": "[Journal]\nStorage=volatile\nReadKMsg=no\nRateLimitIntervalSec=0\n",
	} {
		if err := m.Write(name, content, 0o644); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(m.path("/etc/systemd/system"), 0o755); err != nil {
		return err
	}
	for _, unit := range masked {
		if err := os.Symlink("/dev/null", m.path("/etc/systemd/system/"+unit)); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(m.dir, "boot.sh"), []byte(bootScript), 0o600)
}

// path is where a file of the machine is, as the host sees it.
func (m *Machine) path(name string) string {
	if m.init != 0 {
		return filepath.Join(m.Root(), name)
	}
	return filepath.Join(m.dir, "upper", name)
}

// Root is the machine's root folder while it runs, through which the host can
// connect to its sockets too.
func (m *Machine) Root() string { return fmt.Sprintf("/proc/%d/root", m.init) }

// Write writes a file of the machine, before it is booted or later, and makes
// the folders above it.
func (m *Machine) Write(name, content string, mode os.FileMode) error {
	path := m.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// Install copies programs of the host into the machine's folder.
func (m *Machine) Install(folder string, programs ...string) error {
	for _, p := range programs {
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if err := m.Write(filepath.Join(folder, filepath.Base(p)), string(b), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Boot starts systemd and waits until all its units have. The cache of
// artifacts is there, read-only, at its place.
func (m *Machine) Boot(ctx context.Context) error {
	index, err := cache.Locate(cache.Dir())
	if err != nil {
		return err
	}
	tests, err := cache.LocateTests(cache.Dir())
	if err != nil {
		return err
	}
	folder, err := filepath.EvalSymlinks(cache.Dir())
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(m.dir, "binds"), []byte(folder+" "+folder+"\n"), 0o600); err != nil {
		return err
	}
	if m.groups, err = makeGroups(filepath.Base(m.dir)); err != nil {
		return err
	}
	lower := tests.Systemd.Path + ":" + index.Rootfs.Path
	cmd := exec.Command("sh", append([]string{filepath.Join(m.dir, "boot.sh"), lower}, m.groups...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = m.dir, &m.said, &m.said
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Pdeathsig: syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET,
	}
	started := make(chan error)
	go func() {
		// The death signal comes when the thread that forked ends.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			m.exited <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	m.process, m.init = cmd.Process, cmd.Process.Pid
	return m.await(ctx)
}

// await waits for the end of the boot, which no unit may have failed.
func (m *Machine) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	for {
		state, _ := m.Run(ctx, "systemctl", "is-system-running")
		switch strings.TrimSpace(state) {
		case "running":
			return nil
		case "degraded":
			failed, err := m.Run(ctx, "systemctl", "--failed", "--no-legend", "--plain")
			return errors.Join(fmt.Errorf("boot: units failed: %s", failed), err)
		}
		select {
		case err := <-m.exited:
			m.exited <- err
			return fmt.Errorf("boot: systemd ended (%v): %s", err, m.said.String())
		case <-ctx.Done():
			return fmt.Errorf("boot: systemd says %q: %w", state, ctx.Err())
		case <-time.After(pollInterval):
		}
	}
}

// Run runs a program in the machine, as root, and returns its standard output.
func (m *Machine) Run(ctx context.Context, args ...string) (string, error) {
	enter := []string{"--target", strconv.Itoa(m.init), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd=/", "--"}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out), err
}

// Show returns a property of a unit (systemctl(1)).
func (m *Machine) Show(ctx context.Context, unit, property string) (string, error) {
	out, err := m.Run(ctx, "systemctl", "show", "--property", property, "--value", unit)
	return strings.TrimSpace(out), err
}

// Journal returns what a unit has said, one line for each entry.
func (m *Machine) Journal(ctx context.Context, unit string) (string, error) {
	return m.Run(ctx, "journalctl", "--no-pager", "--quiet", "--output", "cat", "--unit", unit)
}

// Close ends systemd in order, or after a while kills it with all that runs in
// the machine, and removes everything.
func (m *Machine) Close() error {
	if m.init != 0 {
		// One that has ended is past all signals.
		_ = m.process.Signal(powerOff)
		select {
		case <-m.exited:
		case <-time.After(stopTimeout):
			_ = m.process.Kill()
			<-m.exited
		}
		m.init = 0
	}
	return errors.Join(removeGroups(m.groups), os.RemoveAll(m.dir))
}
