package session

import (
	"context"
	"errors"
	"os"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/disk"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/workspace"
	"golang.org/x/sys/unix"
)

// home is the folder that the agent finds as its home. In a file system of its
// own it is not the top, where lost+found lies.
func (s *session) home(p *registry.Profile) string {
	if p.State == registry.Unlimited {
		return s.paths.State
	}
	return s.paths.Home + "/home"
}

// doState makes the agent's home, which is its own.
func (s *session) doState(ctx context.Context, c *creation) error {
	if c.profile.State != registry.Unlimited {
		if err := s.m.Images.Mount(ctx, s.paths.State, s.paths.Home, int64(c.profile.State)); err != nil {
			return err
		}
	}
	home := s.home(c.profile)
	for _, dir := range []string{home, home + "/tmp"} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if err := os.Lchown(dir, int(c.workspace.UID), int(c.workspace.GID)); err != nil {
			return err
		}
	}
	return nil
}

// undoState removes what is there, an image or a folder.
func (s *session) undoState(ctx context.Context) error {
	if err := workspace.Unpin(s.paths.Home); err != nil {
		return err
	}
	err := disk.Remove(ctx, s.paths.State)
	if errors.Is(err, unix.ENOTEMPTY) {
		return removeTree(s.paths.State)
	}
	return err
}
