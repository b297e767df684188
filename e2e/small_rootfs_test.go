package e2e

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
	"git.jb.codes/jb/paseo-sandbox/shared/artifact/cache"
)

// Every broker reads its whole root file system when it starts, and most of it
// is Pi. Tests that run small programs alone have one without Pi.
var (
	smallOnce sync.Once
	smallDir  string
	small     artifact.Location
	smallErr  error
)

// startSmallSystem is startSystem for sessions of shells and small programs.
func startSmallSystem(t *testing.T, o harness.Options) *harness.System {
	t.Helper()
	o.Rootfs = smallRootfs(t)
	return startSystem(t, o)
}

// smallRootfs makes the root file system once.
func smallRootfs(t *testing.T) artifact.Location {
	t.Helper()
	smallOnce.Do(func() { smallErr = makeSmallRootfs(t.Context()) })
	if smallErr != nil {
		t.Fatal(smallErr)
	}
	return small
}

func makeSmallRootfs(ctx context.Context) error {
	index, err := cache.Locate(cache.Dir())
	if err != nil {
		return err
	}
	if smallDir, err = os.MkdirTemp("", "pss-rootfs-"); err != nil {
		return err
	}
	small = artifact.Location{Path: filepath.Join(smallDir, "tree"), Manifest: filepath.Join(smallDir, "manifest")}
	if err := copyTree(small.Path, index.Rootfs.Path); err != nil {
		return err
	}
	manifest, err := artifact.Build(ctx, small.Path)
	if err != nil {
		return err
	}
	small.Digest = manifest.Digest()
	f, err := os.OpenFile(small.Manifest, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = manifest.WriteTo(f)
	return err
}

// copyTree copies the folders, links and files that smallNeeds.
func copyTree(to, from string) error {
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		info, err := d.Info()
		switch {
		case err != nil:
			return err
		case !smallNeeds(rel, info) && d.IsDir():
			return filepath.SkipDir
		case !smallNeeds(rel, info):
			return nil
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), info.Mode().Perm())
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			return os.Symlink(target, filepath.Join(to, rel))
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), data, info.Mode().Perm())
	})
}

// smallNeeds reports whether a file of the root file system is a folder to
// mount on, a small program, or a library of one.
func smallNeeds(rel string, info fs.FileInfo) bool {
	libraries := []string{"ld-linux", "libc.so", "libtinfo.so", "libselinux.so", "libpcre2-8.so", "libacl.so", "libattr.so", "libm.so", "libgmp.so"}
	dir, base := filepath.Split(rel)
	switch {
	case slices.Contains([]string{"usr", "usr/bin", "usr/lib", "usr/lib64"}, rel):
		return true
	case strings.HasPrefix(rel, "var/"), dir == "usr/":
		return false
	case dir == "usr/bin/":
		return info.Size() < 256<<10 || base == "bash"
	case dir == "usr/lib/":
		return strings.HasSuffix(base, "-linux-gnu") || !info.IsDir()
	case strings.HasPrefix(dir, "usr/lib"):
		return slices.ContainsFunc(libraries, func(l string) bool { return strings.HasPrefix(base, l) })
	}
	return true
}
