package artifact

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// Location says where an artifact is and what it must be.
type Location struct {
	Path     string `json:"path"`     // absolute path of the tree or file
	Manifest string `json:"manifest"` // absolute path of its manifest
	Digest   string `json:"digest"`   // "sha256:<hex>" of the manifest
}

// Build reads the tree or file at the absolute path name in full and returns
// its manifest. It refuses what an artifact may not hold.
func Build(ctx context.Context, name string) (*Manifest, error) { return build(ctx, name, rootOwner) }

func build(ctx context.Context, name string, want owner) (*Manifest, error) {
	fd, _, err := openTrusted(name, want)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	kind, entries, err := scan(ctx, fd, want, nil)
	if err != nil {
		return nil, err
	}
	return newManifest(kind, entries, want)
}

// Artifact is an artifact that was opened against a digest. It owns one
// descriptor. Its methods may be called at the same time, but not with or after
// Close.
type Artifact struct {
	Manifest *Manifest

	loc   Location
	owner owner
	fd    int
	seen  []identity
}

// identity is what the cheap check compares.
type identity struct {
	name     string
	dev, ino uint64
	mode     uint32
	uid, gid uint32
	ctime    unix.Timespec // moves with content, mode, owner, links and names
}

// Open reads the manifest, holds it to the digest, opens the artifact and
// notes the identity of its root and top-level entries, which must be as the
// manifest says. It does not read the files: that is [Artifact.VerifyFull].
func Open(loc Location) (*Artifact, error) { return open(loc, rootOwner) }

func open(loc Location, want owner) (*Artifact, error) {
	m, err := readManifest(loc.Manifest, want)
	if err != nil {
		return nil, err
	}
	if m.Digest() != loc.Digest {
		return nil, errorf(CodeDigestMismatch, nil, "the manifest %q has digest %s, not %q", loc.Manifest, m.Digest(), loc.Digest)
	}
	fd, st, err := openTrusted(loc.Path, want)
	if err != nil {
		return nil, err
	}
	a := &Artifact{Manifest: m, loc: loc, owner: want, fd: fd}
	if a.seen, err = identities(fd, st); err == nil {
		err = a.checkTop()
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return a, nil
}

func readManifest(name string, want owner) (*Manifest, error) {
	fd, st, err := openTrusted(name, want)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errorf(CodeForbiddenEntry, nil, "the manifest %q is not a file", name)
	}
	if st.Uid != want.uid || st.Mode&0o022 != 0 {
		return nil, errorf(CodeNotRootOwned, nil, "the manifest %q can be changed by users other than root", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxManifestBytes+1))
	if err != nil {
		return nil, ioError(err, "the manifest %q can't be read", name)
	}
	return parseManifest(data, want)
}

// Location returns what Open was given.
func (a *Artifact) Location() Location { return a.loc }

// FD returns the descriptor of the tree or file that was opened. It stays the
// Artifact's.
func (a *Artifact) FD() int { return a.fd }

// Close gives the descriptor back.
func (a *Artifact) Close() error { return unix.Close(a.fd) }

// VerifyFull reads the whole artifact and compares it with the manifest. The
// first difference is the error. progress, which may be nil, gets the bytes
// read so far and in all, one call at a time.
func (a *Artifact) VerifyFull(ctx context.Context, progress func(done, total int64)) error {
	var done int64
	total := a.Manifest.Bytes()
	_, got, err := scan(ctx, a.fd, a.owner, func(n int64) {
		done += n
		if progress != nil {
			progress(done, total)
		}
	})
	if err != nil {
		return err
	}
	return a.compare(got)
}

// compare walks two sorted lists in step.
func (a *Artifact) compare(got []Entry) error {
	mismatch := func(path, why string) error {
		return errorf(CodeDigestMismatch, nil, "%s: %q %s", a.loc.Path, path, why)
	}
	want := a.Manifest.Entries
	for len(want) > 0 || len(got) > 0 {
		switch {
		case len(want) == 0 || (len(got) > 0 && got[0].Path < want[0].Path):
			return mismatch(got[0].Path, "is not in the manifest")
		case len(got) == 0 || want[0].Path < got[0].Path:
			return mismatch(want[0].Path, "is missing")
		case want[0] != got[0]:
			return mismatch(want[0].Path, "is not as in the manifest: "+difference(&want[0], &got[0]))
		}
		want, got = want[1:], got[1:]
	}
	return nil
}

func difference(want, got *Entry) string {
	var d []string
	for name, differs := range map[string]bool{
		"type": want.Type != got.Type, "mode": want.Mode != got.Mode, "owner": want.UID != got.UID || want.GID != got.GID,
		"size": want.Size != got.Size, "content": want.SHA256 != got.SHA256, "target": want.Target != got.Target,
	} {
		if differs {
			d = append(d, name)
		}
	}
	sort.Strings(d)
	return "another " + strings.Join(d, ", ")
}

// VerifyIdentity checks, without reading files, that the path still leads to
// what was opened, and that its top-level entries are untouched.
func (a *Artifact) VerifyIdentity() error {
	fd, st, err := openTrusted(a.loc.Path, a.owner)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	now, err := identities(fd, st)
	if err != nil {
		return err
	}
	for i := range max(len(now), len(a.seen)) {
		if i >= len(now) || i >= len(a.seen) || now[i] != a.seen[i] {
			name := "." // a name more or less: the directory itself changed
			if i < len(now) && i < len(a.seen) && now[i].name == a.seen[i].name {
				name = now[i].name
			}
			return errorf(CodeIdentityChanged, nil, "%q is not as it was when the artifact was opened", filepath.Join(a.loc.Path, name))
		}
	}
	return nil
}

// checkTop holds what was seen to the manifest.
func (a *Artifact) checkTop() error {
	top := make(map[string]*Entry)
	for i := range a.Manifest.Entries {
		if e := &a.Manifest.Entries[i]; !strings.Contains(e.Path, "/") {
			top[e.Path] = e
		}
	}
	typeOf := map[Type]uint32{TypeDir: unix.S_IFDIR, TypeFile: unix.S_IFREG, TypeSymlink: unix.S_IFLNK}
	for _, id := range a.seen {
		e := top[id.name]
		switch {
		case id.uid != a.owner.uid || id.gid != a.owner.gid:
			return errorf(CodeNotRootOwned, nil, "%q belongs to %d:%d", filepath.Join(a.loc.Path, id.name), id.uid, id.gid)
		case e == nil:
			return errorf(CodeDigestMismatch, nil, "%s: %q is not in the manifest", a.loc.Path, id.name)
		case id.mode != typeOf[e.Type]|e.Mode:
			return errorf(CodeDigestMismatch, nil, "%s: %q has another type or mode than in the manifest", a.loc.Path, id.name)
		}
	}
	if len(a.seen) != len(top) {
		return errorf(CodeDigestMismatch, nil, "%s: an entry of the manifest is missing", a.loc.Path)
	}
	return nil
}

// identities lists the root, as ".", and the entries directly in it by name.
func identities(fd int, st *unix.Stat_t) ([]identity, error) {
	of := func(name string, st *unix.Stat_t) identity {
		return identity{name, st.Dev, st.Ino, st.Mode, st.Uid, st.Gid, st.Ctim}
	}
	ids := []identity{of(".", st)}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return ids, nil
	}
	own, err := reopenDir(fd)
	if err != nil {
		return nil, err
	}
	d := os.NewFile(uintptr(own), ".")
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, ioError(err, "the artifact can't be listed")
	}
	sort.Strings(names)
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(own, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil, ioError(err, "%q can't be examined", name)
		}
		ids = append(ids, of(name, &st))
	}
	return ids, nil
}
