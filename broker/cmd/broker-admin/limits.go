package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/cgroup"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/disk"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/workspace"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// The checks of what bounds a session (R34).

// lookLimits makes cgroups beside the broker's, which are removed at once.
func lookLimits(context.Context, *patient) (string, error) {
	g, err := cgroup.Open(fmt.Sprintf("/paseo-sandbox-doctor-%d", os.Getpid()))
	if err != nil {
		return "", err
	}
	version := g.Version()
	if !g.CountsSwap() {
		version += "; swap is not limited"
	}
	return "cgroups " + version + " with cpu, memory, pids", nil
}

// homeTimeout bounds the removal of the doctor's home.
const homeTimeout = 30 * time.Second

// lookHomes makes a small home where the sessions' are, writes to it, and
// removes it.
func lookHomes(ctx context.Context, p *patient) (detail string, err error) {
	dir, err := os.MkdirTemp(p.layout.States(), ".doctor-")
	if err != nil {
		return "", &wire.Error{Code: wire.CodeDiskUnavailable, Message: "no home can be made in " + p.layout.States(), Advice: "start the broker, which makes the folder, and make room", Err: err}
	}
	image, target := dir+"/image", dir+"/home"
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), homeTimeout)
		defer cancel()
		err = errors.Join(err, workspace.Unpin(target), disk.Remove(ctx, image), workspace.ReleasePinRoot(dir), os.Remove(dir))
	}()
	if err := workspace.PreparePinRoot(dir); err != nil {
		return "", err
	}
	var images disk.Images
	if err := images.Mount(ctx, image, target, disk.MinSize); err != nil {
		return "", err
	}
	if err := os.WriteFile(target+"/file", []byte("written"), 0o600); err != nil {
		return "", &wire.Error{Code: wire.CodeDiskUnavailable, Message: "a home can't be written", Advice: "look at the kernel's log", Err: err}
	}
	return "made, mounted and written", nil
}
