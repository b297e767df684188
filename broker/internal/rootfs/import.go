package rootfs

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// Options of an import. The zero value is strict.
type Options struct {
	// Normalize mends or leaves out what a root file system may not have, and
	// reports it, instead of refusing it. What escapes, and what exceeds a
	// limit, is always refused.
	Normalize bool
	// Digest, if any, is what the tree must have in the end.
	Digest string
	// Progress, which may be nil, gets the bytes and entries so far.
	Progress func(bytes int64, entries int)
}

// Result says what an import did.
type Result struct {
	Digest  string `json:"digest"`
	Entries int    `json:"entries"`
	Bytes   int64  `json:"bytes"`
	// AlreadyPresent: it was in the store, and nothing was changed.
	AlreadyPresent bool `json:"alreadyPresent"`
	// Made are the mount points that the source did not have.
	Made []string `json:"made"`
	// Changes are what Options.Normalize did.
	Changes []Change `json:"changes"`
}

// ImportTar imports a tar stream, plain or compressed with gzip, and reads it
// to its end.
//
// Nothing is in the store unless the import succeeds. Errors: the Code
// constants of this package, those of package artifact, CodeRootRequired,
// CodeStorageFull, CodeInvalidConfig.
func (s *Store) ImportTar(ctx context.Context, r io.Reader, o Options) (*Result, error) {
	return s.imports(ctx, o, func(k *sink, _ int) error { return readTar(ctx, r, k) })
}

// ImportDir is ImportTar for a folder. A folder that changes meanwhile is
// refused where that is seen; the digest is that of what was stored in any
// case.
func (s *Store) ImportDir(ctx context.Context, dir string, o Options) (*Result, error) {
	return s.imports(ctx, o, func(k *sink, store int) error { return readDir(ctx, dir, k, store) })
}

func (s *Store) imports(ctx context.Context, o Options, fill func(k *sink, store int) error) (r *Result, err error) {
	if err := s.prepare(); err != nil {
		return nil, err
	}
	w, err := s.newWork(".import-")
	if err != nil {
		return nil, err
	}
	defer w.close()
	// After a rename there is nothing of this name.
	defer func() { err = errors.Join(err, w.remove()) }()
	if r, err = s.stage(ctx, w, o, fill); err != nil {
		return nil, err
	}
	m, err := artifact.Build(ctx, w.path+"/tree")
	if err != nil {
		return nil, ioFail(err, "the tree can't be read again")
	}
	r.Digest, r.Entries, r.Bytes = m.Digest(), len(m.Entries), m.Bytes()
	if o.Digest != "" && o.Digest != r.Digest {
		return nil, &wire.Error{
			Code: wire.CodeArtifactMismatch, Message: "the source has the digest " + r.Digest + ", not " + o.Digest,
			Advice: "get the right source, or correct --digest; the digest depends on --normalize; nothing was imported",
		}
	}
	return r, s.publish(ctx, w, m, r)
}

// stage fills the folder with the tree.
func (s *Store) stage(ctx context.Context, w *work, o Options, fill func(k *sink, store int) error) (*Result, error) {
	store, err := unix.Open(s.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, ioFail(err, "the store can't be opened")
	}
	defer unix.Close(store)
	at := int(w.dir.Fd())
	if err := unix.Mkdirat(at, "tree", 0o700); err != nil {
		return nil, ioFail(err, "the tree can't be made")
	}
	tree, err := openBeneath(at, "tree", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, ioFail(err, "the tree can't be opened")
	}
	defer unix.Close(tree)
	// What it is when the source does not say.
	if err := unix.Fchmod(tree, 0o755); err != nil {
		return nil, ioFail(err, "the tree's mode can't be set")
	}
	k := newSink(ctx, tree, o, s.limits)
	defer k.close()
	if err := fill(k, store); err != nil {
		return nil, err
	}
	made, err := k.addMountPoints()
	if err != nil {
		return nil, err
	}
	return &Result{Made: made, Changes: k.changes()}, nil
}

// publish brings all to the disk and gives it its name.
func (s *Store) publish(ctx context.Context, w *work, m *artifact.Manifest, r *Result) error {
	f, err := os.OpenFile(w.path+"/manifest", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return ioFail(err, "the manifest can't be written")
	}
	_, err = m.WriteTo(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return ioFail(err, "the manifest can't be written")
	}
	// One call for all files: an fsync(2) for each takes minutes.
	if err := s.flush(int(w.dir.Fd())); err != nil {
		return ioFail(err, "the tree can't be brought to the disk")
	}
	if err := ctx.Err(); err != nil {
		return ioFail(context.Cause(ctx), "the import was stopped")
	}
	name := s.layout.Rootfs(strings.TrimPrefix(r.Digest, scheme))
	err = unix.Renameat2(unix.AT_FDCWD, w.path, unix.AT_FDCWD, name, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) {
		r.AlreadyPresent = true
		return s.Verify(ctx, r.Digest, nil)
	}
	if err != nil {
		return ioFail(err, "the tree can't be given its name")
	}
	return syncDir(s.dir)
}
