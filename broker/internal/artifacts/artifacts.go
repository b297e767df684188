package artifacts

import (
	"context"
	"errors"
	"fmt"
	"os"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/bundle"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/trusted"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/workspace"
	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Error marks an error as one of an artifact; it wraps a *wire.Error.
type Error struct{ Err error }

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the *wire.Error.
func (e *Error) Unwrap() error { return e.Err }

// Set is the opened artifacts. Close it.
type Set struct {
	Runsc  *artifact.Executable
	Rootfs *artifact.Artifact
	Bridge *os.File
}

// Open opens and verifies everything. Errors are of type *Error, with
// CodeRuntimeMissing, CodeRootfsMissing, CodeArtifactMismatch, or the code of
// package artifact. Progress, which may be nil, gets the bytes of the rootfs
// that were read, and how many there are.
func Open(ctx context.Context, c *registry.Config, progress func(done, total int64)) (*Set, error) {
	s := &Set{}
	if err := s.open(ctx, c, progress); err != nil {
		return nil, errors.Join(&Error{Err: err}, s.Close())
	}
	return s, nil
}

func (s *Set) open(ctx context.Context, c *registry.Config, progress func(done, total int64)) (err error) {
	if s.Bridge, err = OpenBridge(c); err != nil {
		return err
	}
	if s.Runsc, err = artifact.OpenExecutable(ctx, c.Runsc); err != nil {
		return typed("runsc", wire.CodeRuntimeMissing, err)
	}
	if s.Rootfs, err = artifact.Open(c.Rootfs); err != nil {
		return typed("the rootfs", wire.CodeRootfsMissing, err)
	}
	if err := s.Rootfs.VerifyFull(ctx, progress); err != nil {
		return typed("the rootfs", wire.CodeRootfsMissing, err)
	}
	for _, m := range bundle.Build(bundle.Session{AttachmentsDir: "/"}).Mounts {
		if !s.Rootfs.Manifest.HasDir(m.Destination) {
			return &wire.Error{Code: wire.Code(artifact.CodeForbiddenEntry), Message: "the rootfs has no folder " + m.Destination + ", where a session mounts something", Advice: "import it with broker-admin rootfs import, which makes the folder"}
		}
	}
	return nil
}

// Check says whether runsc and the rootfs are still what Open verified, as far
// as that is seen without reading them. It is for each session.
func (s *Set) Check() error { return errors.Join(s.Runsc.VerifyIdentity(), s.Rootfs.VerifyIdentity()) }

// PinRootfs mounts the tree that was verified at target, a folder that is made
// and must be in one of workspace.PreparePinRoot. What an earlier broker has
// pinned there goes: sandboxes that run from it keep it. From then on no
// session depends on the path of the rootfs. workspace.Unpin undoes it.
func (s *Set) PinRootfs(target string) error {
	err := workspace.PinTree(s.Rootfs.FD(), s.Rootfs.Location().Path, target)
	if err != nil {
		return &Error{Err: &wire.Error{Code: wire.Code(artifact.CodeForbiddenEntry), Message: "the rootfs can't be pinned", Advice: "see that nothing is mounted in it and that its mount is not unbindable", Err: err}}
	}
	return nil
}

// OpenBridge opens the bridge's program alone. The caller closes it.
func OpenBridge(c *registry.Config) (*os.File, error) {
	path, err := c.Bridge.Program()
	if err != nil {
		return nil, err
	}
	f, err := trusted.OpenExecutable(path)
	if err != nil {
		return nil, &wire.Error{Code: wire.CodeBridgeFailed, Message: "the bridge's program can't be used", Advice: "install it beside the broker's, owned by root, or correct bridge.path", Err: err}
	}
	return f, nil
}

func typed(what string, missing wire.Code, err error) error {
	var a *artifact.Error
	if !errors.As(err, &a) {
		return err
	}
	code := wire.Code(a.Code)
	if a.Code == artifact.CodeMissing {
		code = missing
	}
	return &wire.Error{Code: code, Message: fmt.Sprintf("%s can't be used: %s", what, a.Message), Advice: a.Advice, Err: a.Err}
}

// Close closes what is open.
func (s *Set) Close() error {
	var err error
	if s.Bridge != nil {
		err = s.Bridge.Close()
	}
	if s.Runsc != nil {
		err = errors.Join(err, s.Runsc.Close())
	}
	if s.Rootfs != nil {
		err = errors.Join(err, s.Rootfs.Close())
	}
	return err
}
