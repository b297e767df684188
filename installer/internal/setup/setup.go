package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
)

const manifestName = "manifest"

// Setup is one run of set-up over a cache.
type Setup struct {
	Cache    string // absolute
	Progress *Progress
	Verify   bool // read finished artifacts in full
	Force    bool // build again what is finished
}

// Open makes the cache directory if need be, names it by its real path, and
// locks it until the returned function is called.
func (s *Setup) Open(ctx context.Context) (func(), error) {
	for _, sub := range []string{"log", "work"} {
		if err := os.MkdirAll(filepath.Join(s.Cache, sub), 0o755); err != nil {
			return nil, Errorf(CodeCache, err, "Choose another cache with PASEO_SANDBOX_CACHE or --cache.", "the cache %q can't be made", s.Cache)
		}
	}
	if err := s.Resolve(); err != nil {
		return nil, err
	}
	// Better now than after building.
	if err := artifact.CheckPlace(s.Cache); err != nil {
		return nil, Errorf(CodeCache, err, "Choose another cache with PASEO_SANDBOX_CACHE or --cache: one that root alone can change, as its parents.", "artifacts in the cache %q would not be trusted", s.Cache)
	}
	lock, err := lockCache(ctx, s.Cache, s.Progress)
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.Close() }, nil
}

// Resolve names the cache by its real path, if it exists: artifacts are opened
// without following a symlink.
func (s *Setup) Resolve() error {
	name, err := filepath.EvalSymlinks(s.Cache)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return Errorf(CodeCache, err, "Look at the cause.", "the cache %q can't be resolved", s.Cache)
	}
	s.Cache = name
	return nil
}

func (s *Setup) artifactDir(r *Recipe) string { return filepath.Join(s.Cache, r.Name, r.Key) }

func (s *Setup) location(r *Recipe, digest string) artifact.Location {
	dir := s.artifactDir(r)
	return artifact.Location{Path: filepath.Join(dir, r.Payload), Manifest: filepath.Join(dir, manifestName), Digest: digest}
}

// Ready says whether the artifact of a recipe is finished. known is the digest
// that the index recorded for this path; without one the artifact is read in
// full against its own manifest. A finished artifact that fails the check is an
// error, never a reason to build another one unasked.
func (s *Setup) Ready(ctx context.Context, r *Recipe, known artifact.Location) (artifact.Location, bool, error) {
	loc := s.location(r, known.Digest)
	if _, err := os.Lstat(s.artifactDir(r)); errors.Is(err, fs.ErrNotExist) {
		return loc, false, nil
	}
	full := s.Verify
	if known != loc {
		data, err := os.ReadFile(loc.Manifest)
		if err != nil {
			return loc, false, Errorf(CodeCache, err, "Build it again with --force.", "the manifest of %s can't be read", r.Name)
		}
		m, err := artifact.ParseManifest(data)
		if err != nil {
			return loc, false, err
		}
		loc.Digest, full = m.Digest(), true
	}
	a, err := artifact.Open(loc)
	if err != nil {
		return loc, false, err
	}
	defer a.Close()
	if full {
		var done, total atomic.Int64
		detail := func() string { return fmt.Sprintf("%d of %d MiB", done.Load()>>20, total.Load()>>20) }
		err = s.Progress.During(r.Name+": full check", detail, func() error {
			return a.VerifyFull(ctx, func(d, t int64) { done.Store(d); total.Store(t) })
		})
	}
	return loc, err == nil, err
}

// Build makes the artifacts of the recipes side by side. When one fails the
// others are stopped. The result is in the order of the recipes.
func (s *Setup) Build(ctx context.Context, recipes []*Recipe) ([]artifact.Location, error) {
	if err := s.CheckSpace(recipes); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	locs := make([]artifact.Location, len(recipes))
	var all sync.WaitGroup
	for i, r := range recipes {
		all.Go(func() {
			digest, err := s.build(ctx, r)
			if err != nil {
				cancel(err) // the first one is the cause
				return
			}
			locs[i] = s.location(r, digest)
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return locs, nil
}

// CheckSpace refuses a cache whose filesystem is too full for building.
func (s *Setup) CheckSpace(recipes []*Recipe) error {
	var need int64
	for _, r := range recipes {
		need += r.Space
	}
	dir := s.Cache
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	for err == unix.ENOENT && dir != "/" { // where it would be made
		dir = filepath.Dir(dir)
		err = unix.Statfs(dir, &st)
	}
	if err != nil {
		return Errorf(CodeCache, err, "Look at the cause.", "the free space of %q can't be read", s.Cache)
	}
	if free := int64(st.Bavail) * st.Bsize; free < need {
		return Errorf(CodeDiskSpace, nil, "Free some, or choose another cache with PASEO_SANDBOX_CACHE or --cache.",
			"%q has %d MiB free, and building needs %d MiB", s.Cache, free>>20, need>>20)
	}
	return nil
}

// CheckRoot refuses a user who is not root, by naming what needs it.
func CheckRoot(cache string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	return Errorf(CodeNotRoot, nil, "Run it as root, for example `sudo make setup`.",
		"set-up needs root: files of the rootfs belong to root, debootstrap uses chroot and mount, and %s is written", cache)
}

// OnDebian says whether missing tools can be installed with apt-get.
func OnDebian() bool {
	data, err := os.ReadFile("/etc/os-release")
	if err != nil || runtime.GOOS != "linux" {
		return false
	}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if (key == "ID" || key == "ID_LIKE") && strings.Contains(value, "debian") {
			return true
		}
	}
	return false
}
