package artifact

import (
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path"
	"runtime"
	"sort"
	"sync"

	"golang.org/x/sys/unix"
)

// hashJob is a regular file to read. Whoever holds the job owns its descriptor.
type hashJob struct {
	fd    int
	entry *Entry
}

// scanner reads a whole artifact: one goroutine walks, a few hash.
type scanner struct {
	ctx      context.Context
	cancel   context.CancelCauseFunc
	owner    owner
	dev      uint64
	entries  []*Entry
	jobs     chan hashJob
	progress func(n int64)
}

// scan lists the artifact whose root is open as fd, hashing every file. It
// leaves fd open. progress, which may be nil, is told of bytes read, one call
// at a time.
func scan(ctx context.Context, fd int, want owner, progress func(n int64)) (Kind, []Entry, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &scanner{ctx: ctx, cancel: cancel, owner: want, jobs: make(chan hashJob, 8)}
	var mu sync.Mutex
	s.progress = func(n int64) {
		if progress != nil {
			mu.Lock()
			defer mu.Unlock()
			progress(n)
		}
	}
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), 4) {
		workers.Go(s.hash)
	}
	kind, walkErr := s.root(fd)
	if walkErr != nil {
		cancel(walkErr)
	}
	close(s.jobs)
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		var typed *Error
		if errors.As(err, &typed) {
			return kind, nil, typed
		}
		return kind, nil, errorf(CodeCancelled, err, "the check of the artifact was stopped")
	}
	entries := make([]Entry, len(s.entries))
	for i, e := range s.entries {
		entries[i] = *e
	}
	rest := entries[1:] // "." stays first
	sort.Slice(rest, func(i, j int) bool { return rest[i].Path < rest[j].Path })
	return kind, entries, nil
}

func (s *scanner) root(fd int) (Kind, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", ioError(err, "the artifact can't be examined")
	}
	s.dev = st.Dev
	// The walk closes what it is given; the caller keeps its own.
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		own, err := reopenDir(fd)
		if err != nil {
			return "", err
		}
		return KindTree, s.dir(own, ".", &st, 0)
	}
	own, err := retryEINTR(func() (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil {
		return "", ioError(err, "the artifact's descriptor can't be duplicated")
	}
	return KindFile, s.file(own, ".", &st)
}

// dir records a directory and walks it. It closes fd.
func (s *scanner) dir(fd int, name string, st *unix.Stat_t, depth int) error {
	d := os.NewFile(uintptr(fd), name)
	defer d.Close()
	if st.Dev != s.dev {
		return errorf(CodeForbiddenEntry, nil, "%q is a mount", name)
	}
	if depth > MaxDepth {
		return errorf(CodeForbiddenEntry, nil, "%q is nested deeper than %d", name, MaxDepth)
	}
	if err := s.add(&Entry{Path: name, Type: TypeDir}, st); err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	if err != nil {
		return ioError(err, "%q can't be listed", name)
	}
	for _, child := range names {
		if err := s.ctx.Err(); err != nil {
			return context.Cause(s.ctx)
		}
		if err := s.child(fd, child, path.Join(name, child), depth); err != nil {
			return err
		}
	}
	return nil
}

func (s *scanner) child(dirfd int, name, full string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return ioError(err, "%q can't be examined", full)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		buf := make([]byte, MaxPathBytes+1)
		n, err := unix.Readlinkat(dirfd, name, buf)
		if err != nil {
			return ioError(err, "the symlink %q can't be read", full)
		}
		return s.add(&Entry{Path: full, Type: TypeSymlink, Target: string(buf[:n])}, &st)
	case unix.S_IFREG, unix.S_IFDIR:
	default:
		what := map[uint32]string{unix.S_IFCHR: "character device", unix.S_IFBLK: "block device", unix.S_IFIFO: "named pipe", unix.S_IFSOCK: "socket"}
		return errorf(CodeForbiddenEntry, nil, "%q is a %s", full, what[st.Mode&unix.S_IFMT])
	}
	fd, opened, err := openAt(dirfd, name)
	if err != nil {
		return ioError(err, "%q can't be opened", full)
	}
	if opened.Mode&unix.S_IFMT == unix.S_IFDIR {
		return s.dir(fd, full, opened, depth+1)
	}
	return s.file(fd, full, opened)
}

// file records a regular file and hands it to a hasher. It takes over fd.
func (s *scanner) file(fd int, name string, st *unix.Stat_t) error {
	e := &Entry{Path: name, Type: TypeFile, Size: st.Size}
	err := s.add(e, st)
	if err == nil && st.Nlink != 1 {
		err = errorf(CodeForbiddenEntry, nil, "%q has another hard link, by which it could be changed", name)
	}
	if err == nil {
		if _, xerr := unix.Fgetxattr(fd, "security.capability", nil); xerr == nil {
			err = errorf(CodeForbiddenEntry, nil, "%q has file capabilities", name)
		} else if xerr != unix.ENODATA && xerr != unix.EOPNOTSUPP {
			err = ioError(xerr, "the attributes of %q can't be read", name)
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	select {
	case s.jobs <- hashJob{fd, e}:
		return nil
	case <-s.ctx.Done():
		_ = unix.Close(fd)
		return context.Cause(s.ctx)
	}
}

func (s *scanner) add(e *Entry, st *unix.Stat_t) error {
	e.Mode, e.UID, e.GID = st.Mode&0o7777, st.Uid, st.Gid
	if len(s.entries) >= MaxEntries {
		return errorf(CodeForbiddenEntry, nil, "the artifact has more than %d entries", MaxEntries)
	}
	s.entries = append(s.entries, e)
	return e.allowed(s.owner)
}

// hash works off the jobs until the channel is closed; after a cancellation it
// only closes their descriptors.
func (s *scanner) hash() {
	buf := make([]byte, 256<<10)
	for job := range s.jobs {
		if s.ctx.Err() == nil {
			if err := s.hashOne(job, buf); err != nil {
				s.cancel(err)
			}
		}
		_ = unix.Close(job.fd)
	}
}

// hashOne uses pread, so that it neither depends on nor moves an offset that
// the descriptor shares.
func (s *scanner) hashOne(job hashJob, buf []byte) error {
	h := sha256.New()
	var at int64
	for s.ctx.Err() == nil {
		n, err := retryEINTR(func() (int, error) { return unix.Pread(job.fd, buf, at) })
		if err != nil {
			return ioError(err, "%q can't be read", job.entry.Path)
		}
		if n == 0 {
			break
		}
		h.Write(buf[:n])
		at += int64(n)
		s.progress(int64(n))
	}
	if s.ctx.Err() == nil && at != job.entry.Size {
		return errorf(CodeDigestMismatch, nil, "%q changed while it was read", job.entry.Path)
	}
	h.Sum(job.entry.SHA256[:0])
	return nil
}
