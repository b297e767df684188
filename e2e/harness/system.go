package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
	"git.jb.codes/jb/paseo-sandbox/shared/artifact/cache"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/peercred"
	"golang.org/x/sys/unix"
)

// startTimeout bounds the broker's start, which hashes the whole root file
// system; stopTimeout bounds its orderly end.
const (
	startTimeout = 60 * time.Second
	stopTimeout  = 20 * time.Second
	pollInterval = 10 * time.Millisecond
)

// Options describe a system. The zero value of each field but Bin is usable.
type Options struct {
	// Bin is the folder of the built programs.
	Bin string
	// PeerUIDs may use the deployment; none means DefaultPeerUID alone.
	// Daemons run as the first.
	PeerUIDs []uint32
	// Workspaces are made and registered; none means one named "project",
	// owned by the first peer.
	Workspaces []Workspace
	// Profiles are TOML tables [profiles.NAME] beside the profile "pi".
	Profiles string
	// MaxSessions is how many sessions there may be; 0 means the default.
	MaxSessions int
	// Rootfs is the root file system of all sessions; none means the one with
	// Pi.
	Rootfs artifact.Location
	// BrokerConfig replaces parts of broker.toml, for tests of bad input.
	BrokerConfig func(string) string
}

// DefaultPeerUID is the user that daemons run as in tests: the one of Paseo's
// container.
const DefaultPeerUID = 1000

// Deployment is the id of the one deployment that a System has.
const Deployment = "local"

// Workspace is a folder that the system makes below its prefix.
type Workspace struct {
	Name     string
	UID, GID uint32
	ReadOnly bool
	// Subfolders lets sessions name folders below it; ClientPath is another
	// name that leads to it.
	Subfolders bool
	ClientPath string
}

// System is a running broker with its own configuration, state and workspaces
// below one temporary folder.
type System struct {
	// Prefix holds everything; it is removed by Close.
	Prefix    string
	options   Options
	artifacts *cache.Index

	mu     sync.Mutex
	broker *exec.Cmd
	exited chan struct{}
	log    *os.File
}

// New makes the folders and the configuration. Nothing runs yet. It needs
// root and the artifacts that make setup builds.
func New(o Options) (*System, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("root is needed to start sandboxes; run it with sudo")
	}
	artifacts, err := cache.Locate(cache.Dir())
	if err != nil {
		return nil, err
	}
	if o.Rootfs == (artifact.Location{}) {
		o.Rootfs = artifacts.Rootfs.Location
	}
	if len(o.PeerUIDs) == 0 {
		o.PeerUIDs = []uint32{DefaultPeerUID}
	}
	if len(o.Workspaces) == 0 {
		o.Workspaces = []Workspace{{Name: "project", UID: o.PeerUIDs[0], GID: o.PeerUIDs[0]}}
	}
	if o.Bin, err = filepath.Abs(o.Bin); err != nil {
		return nil, err
	}
	prefix, err := os.MkdirTemp("", "pss-")
	if err != nil {
		return nil, err
	}
	s := &System{Prefix: prefix, options: o, artifacts: artifacts}
	if err := s.prepare(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(prefix))
	}
	return s, nil
}

func (s *System) prepare() error {
	// Daemons are other users: they must be able to walk to their socket.
	if err := os.Chmod(s.Prefix, 0o755); err != nil {
		return err
	}
	for _, w := range s.options.Workspaces {
		if err := os.MkdirAll(s.WorkspaceDir(w.Name), 0o755); err != nil {
			return err
		}
		if err := os.Chown(s.WorkspaceDir(w.Name), int(w.UID), int(w.GID)); err != nil {
			return err
		}
	}
	if err := s.writeConfig(); err != nil {
		return err
	}
	log, err := os.OpenFile(s.BrokerLog(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	s.log = log
	return err
}

// WorkspaceDir is the host folder of a workspace.
func (s *System) WorkspaceDir(name string) string {
	return filepath.Join(s.Prefix, "workspaces", name)
}

// BrokerLog is the file that gets the broker's and the bridges' stderr.
func (s *System) BrokerLog() string { return filepath.Join(s.Prefix, "broker.log") }

// BrokerSocket is the socket that daemons of the deployment connect to.
func (s *System) BrokerSocket() string {
	return filepath.Join(s.Prefix, "run", "d", Deployment, "broker.sock")
}

// AdminSocket is the socket of broker-admin.
func (s *System) AdminSocket() string { return filepath.Join(s.Prefix, "run", "admin", "broker.sock") }

// Program returns the path of a built program.
func (s *System) Program(name string) string { return filepath.Join(s.options.Bin, name) }

// PeerUID is the user that daemons run as.
func (s *System) PeerUID() uint32 { return s.options.PeerUIDs[0] }

// Artifacts are the runsc and the root file system in use.
func (s *System) Artifacts() *cache.Index { return s.artifacts }

// StartBroker starts the broker and waits until it accepts connections.
func (s *System) StartBroker(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broker != nil {
		return errors.New("the broker runs already")
	}
	cmd := exec.Command(s.Program("paseo-sandbox-broker"), "--prefix", s.Prefix, "--listen")
	cmd.Stderr = s.log
	cmd.Stdout = s.log
	// A group of its own, so that Ctrl-C in a terminal reaches us alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the broker: %w", err)
	}
	exited := make(chan struct{})
	go func() {
		cmd.Wait()
		close(exited)
	}()
	s.broker, s.exited = cmd, exited
	return s.awaitBroker(ctx)
}

func (s *System) awaitBroker(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if s.listens() {
			return nil
		}
		select {
		case <-s.exited:
			return fmt.Errorf("the broker ended at once (%v):\n%s", s.broker.ProcessState, s.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("the broker does not accept connections: %w\n%s", ctx.Err(), s.LogTail())
		case <-time.After(pollInterval):
		}
	}
}

// listens reports whether the broker that was started answers: a child of one
// that was killed may hold the listening socket for a moment longer. The peer
// of a connection is whoever called listen(2).
func (s *System) listens() bool {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.BrokerSocket(), Net: "unix"})
	if err != nil {
		return false
	}
	defer c.Close()
	peer, err := peercred.Of(c)
	return err == nil && peer.PID() == uint32(s.broker.Process.Pid)
}

// LogTail returns the last 16 KiB of the broker's log.
func (s *System) LogTail() string {
	b, err := os.ReadFile(s.BrokerLog())
	if err != nil {
		return err.Error()
	}
	if len(b) > 16<<10 {
		b = b[len(b)-16<<10:]
	}
	return string(bytes.TrimSpace(b))
}

// StopBroker ends the broker with the signal and waits for it. Sessions go on.
func (s *System) StopBroker(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broker == nil {
		return nil
	}
	s.broker.Process.Signal(sig)
	select {
	case <-s.exited:
	case <-time.After(stopTimeout):
		s.broker.Process.Kill()
		<-s.exited
		return errors.New("the broker did not end in time and was killed")
	}
	s.broker = nil
	return nil
}

// BrokerPID is the broker's process, or 0.
func (s *System) BrokerPID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broker == nil {
		return 0
	}
	return s.broker.Process.Pid
}

// DeleteSessions deletes every session through the admin socket.
func (s *System) DeleteSessions(ctx context.Context) error {
	b, err := client.DialBroker(ctx, s.AdminSocket())
	if err != nil {
		return err
	}
	defer b.Close()
	sessions, err := b.List(ctx)
	if err != nil {
		return err
	}
	for _, info := range sessions {
		if err := b.Delete(ctx, info.Session); err != nil {
			return err
		}
	}
	return nil
}

// Close deletes the sessions, stops the broker and removes the prefix. It
// returns what had been left behind, as an error.
func (s *System) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var errs []error
	if s.BrokerPID() == 0 {
		errs = append(errs, s.StartBroker(ctx))
	} else {
		// A test that ran out of time may have left it starting.
		errs = append(errs, s.awaitBroker(ctx))
	}
	errs = append(errs, s.DeleteSessions(ctx), s.StopBroker(syscall.SIGTERM))
	left, err := s.Leftovers()
	if err != nil {
		errs = append(errs, err)
	}
	if len(left) > 0 {
		errs = append(errs, fmt.Errorf("left behind: %s", strings.Join(left, "; ")))
	}
	if b, err := os.ReadFile(s.BrokerLog()); err == nil && bytes.Contains(b, []byte("DATA RACE")) {
		errs = append(errs, fmt.Errorf("the race detector spoke:\n%s", b))
	}
	errs = append(errs, s.log.Close(), s.remove())
	return errors.Join(errs...)
}

// remove deletes the prefix, and refuses while something is mounted below it:
// a workspace could be emptied through a leftover mount.
func (s *System) remove() error {
	mounts, err := mountsBelow(s.Prefix)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if err := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("%s is still mounted, so %s stays: %w", m, s.Prefix, err)
		}
	}
	return os.RemoveAll(s.Prefix)
}

// Discard removes the prefix of a system whose broker never ran.
func (s *System) Discard() error { return errors.Join(s.log.Close(), s.remove()) }
