package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/activation"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/artifacts"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/inforce"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/launch"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/runsc"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/server"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/session"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/workspace"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// progressAfter is how long a check may take before it says how far it is.
const progressAfter = 2 * time.Second

// serve runs the broker until the context ends. Until everything is checked,
// nothing is changed.
func serve(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	if os.Geteuid() != 0 {
		return &wire.Error{Code: wire.CodeRootRequired, Message: "the broker needs root", Advice: "start it with systemctl, or with sudo"}
	}
	l, err := layout.At(o.prefix)
	if err != nil {
		return err
	}
	config, err := registry.Load(l)
	if err != nil {
		return err
	}
	if o.checkOnly {
		fmt.Fprintf(stdout, "the configuration is valid: %s\n", strings.Join(config.IDs(), ", "))
		return nil
	}
	unix.Umask(0o077)
	lock, err := activation.TryLock(l.Lock(), false)
	if err != nil {
		return err
	}
	parts, err := artifacts.Open(ctx, config, progress(stderr))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, parts.Close()) }()
	bounds, err := openBounds(ctx, l, config)
	if err != nil {
		return err
	}
	if err := l.Prepare(config.Containers()); err != nil {
		return err
	}
	if lock == nil {
		if lock, err = activation.TryLock(l.Lock(), true); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := lock.Sign(); err != nil {
		return err
	}
	log := hclog.New(&hclog.LoggerOptions{Name: "broker", Level: hclog.Info, Output: stderr, JSONFormat: o.logJSON})
	bounds.report(log)
	trail, err := audit.Open(config.Audit, log)
	if err != nil {
		return err
	}
	trail.Happened("start", "(broker)", "", "")
	defer func() {
		trail.Happened("stop", "(broker)", "", string(wire.CodeOf(err)))
		err = errors.Join(err, trail.Close())
	}()
	return manage(ctx, o, l, config, parts, bounds, log, trail)
}

// progress says how far the check of the rootfs is, once a second, if it
// takes long.
func progress(w io.Writer) func(done, total int64) {
	next := time.Now().Add(progressAfter)
	return func(done, total int64) {
		if now := time.Now(); now.After(next) && total > 0 {
			next = now.Add(time.Second)
			fmt.Fprintf(w, "verifying the rootfs: %d %%\n", done*100/total)
		}
	}
}

// manage holds the sessions: it takes up those of an earlier broker and serves
// requests.
func manage(ctx context.Context, o options, l layout.Layout, config *registry.Config, parts *artifacts.Set, bounds *bounds, log hclog.Logger, trail *audit.Trail) (err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	if err := workspace.PreparePinRoot(l.Mounts()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, releasePins(l)) }()
	if err := parts.PinRootfs(l.RootfsPin()); err != nil {
		return err
	}
	runtime, err := runsc.Open(runsc.Options{Executable: parts.Runsc.FD(), Root: l.Runsc(), LogDir: l.RunscLogs(), ReaperUID: config.Bridge.Holds, Cgroups: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, runtime.Close()) }()
	bridge, err := parts.Bridge.SyscallConn()
	if err != nil {
		return err
	}
	clock, err := record.OpenClock(l.Clock(), strings.TrimSpace(string(boot)), record.Monotonic)
	if err != nil {
		return err
	}
	c := session.Config{
		Layout: l, Registry: config, Runtime: runtime, Groups: bounds.groups, Images: bounds.images, CheckArtifacts: parts.Check,
		Boot: strings.TrimSpace(string(boot)), Clock: clock, Log: log, Audit: trail,
	}
	// The file stays open until parts is closed, after everything here.
	if err := bridge.Control(func(fd uintptr) { c.Bridge = int(fd) }); err != nil {
		return err
	}
	if !launch.HasLandlock() {
		log.Warn("landlock_missing", "advice", "the kernel has no Landlock; seccomp and users of their own fence the bridges alone")
	}
	manager := session.New(c)
	defer func() { err = errors.Join(err, manager.Close()) }()
	if err := manager.Recover(ctx); err != nil {
		var e *wire.Error
		if errors.As(err, &e) && e.Code != wire.CodeInternal {
			return err
		}
		log.Error("recovery_incomplete", "error", err.Error(), "advice", "run broker-admin doctor")
	}
	return listen(ctx, o, l, config, manager, log)
}

// releasePins removes the pin of the rootfs, which sandboxes that run keep, and
// the folder of pins, which pins of sessions that go on keep.
func releasePins(l layout.Layout) error {
	unpinned := workspace.Unpin(l.RootfsPin())
	if err := workspace.ReleasePinRoot(l.Mounts()); !errors.Is(err, unix.EBUSY) {
		return errors.Join(unpinned, err)
	}
	return unpinned
}

func listen(ctx context.Context, o options, l layout.Layout, config *registry.Config, manager *session.Manager, log hclog.Logger) error {
	active, err := inforce.Open(inforce.Options{Layout: l, Manager: manager, Limits: server.Defaults, Log: log, Listen: o.listen}, config)
	if err != nil {
		return err
	}
	log.Info("serving", "deployments", strings.Join(config.IDs(), ","), "pid", os.Getpid())
	for ctx.Err() == nil {
		select {
		case <-o.reload:
			active.OnSignal()
		case <-ctx.Done():
		}
	}
	log.Info("stopping", "sessions", "they go on")
	active.Close()
	return nil
}
