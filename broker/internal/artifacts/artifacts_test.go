package artifacts

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/workspace"
	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// seal writes the manifest of a tree or file beside it.
func seal(t *testing.T, name string) artifact.Location {
	t.Helper()
	m, err := artifact.Build(t.Context(), name)
	must(t, err)
	loc := artifact.Location{Path: name, Manifest: name + ".manifest", Digest: m.Digest()}
	f, err := os.OpenFile(loc.Manifest, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	must(t, err)
	_, err = m.WriteTo(f)
	must(t, errors.Join(err, f.Close()))
	return loc
}

// newConfig makes artifacts: any program for runsc and for the bridge.
func newConfig(t *testing.T) (*registry.Config, string) {
	t.Helper()
	rootonly.Test(t)
	base := t.TempDir()
	program, err := os.ReadFile("/bin/true")
	must(t, err)
	for _, name := range []string{"runsc", "bridge"} {
		must(t, os.WriteFile(filepath.Join(base, name), program, 0o755))
	}
	for _, dir := range []string{"proc", "dev", "sys", "run", "tmp", "workspace", "home/agent", "attachments"} {
		must(t, os.MkdirAll(filepath.Join(base, "tree", dir), 0o755))
	}
	c := &registry.Config{Runsc: seal(t, base+"/runsc"), Rootfs: seal(t, base+"/tree")}
	c.Bridge.Path = base + "/bridge"
	return c, base
}

// R16 R17: what is well opens and stays well; each change after it is seen
// before the next session.
func TestCheck(t *testing.T) {
	for name, change := range map[string]func(base string) error{
		"runsc rewritten":  func(b string) error { return os.WriteFile(b+"/runsc", []byte("#!/bin/sh\n"), 0) },
		"rootfs replaced":  func(b string) error { return errors.Join(os.Rename(b+"/tree", b+"/old"), os.Mkdir(b+"/tree", 0o755)) },
		"rootfs opened up": func(b string) error { return os.Chmod(b+"/tree/tmp", 0o777) },
	} {
		c, base := newConfig(t)
		s, err := Open(t.Context(), c, nil)
		must(t, err)
		must(t, s.Check())
		must(t, change(base))
		var a *artifact.Error
		if err := s.Check(); !errors.As(err, &a) || a.Code != artifact.CodeIdentityChanged {
			t.Errorf("%s: got %v", name, err)
		}
		must(t, s.Close())
	}
}

// R16: a rootfs without the folders that sessions mount on is refused, since
// runsc would make them.
func TestOpenRefusesAMissingMountPoint(t *testing.T) {
	c, base := newConfig(t)
	must(t, os.Remove(base+"/tree/attachments"))
	c.Rootfs = seal(t, base+"/tree")
	_, err := Open(t.Context(), c, nil)
	var e *Error
	if !errors.As(err, &e) || wire.CodeOf(err) != wire.Code(artifact.CodeForbiddenEntry) {
		t.Errorf("got %v", err)
	}
}

// R13 R16: the pin shows the tree that was verified, not what its path leads
// to by now.
func TestPinRootfs(t *testing.T) {
	c, base := newConfig(t)
	s, err := Open(t.Context(), c, nil)
	must(t, err)
	defer s.Close()
	pins := base + "/pins"
	must(t, errors.Join(os.Mkdir(pins, 0o700), workspace.PreparePinRoot(pins)))
	t.Cleanup(func() { must(t, errors.Join(workspace.Unpin(pins+"/rootfs"), workspace.ReleasePinRoot(pins))) })
	must(t, errors.Join(os.Rename(base+"/tree", base+"/old"), os.Mkdir(base+"/tree", 0o755)))
	must(t, s.PinRootfs(pins+"/rootfs"))
	want, err := os.Stat(base + "/old")
	must(t, err)
	if got, err := os.Stat(pins + "/rootfs"); err != nil || !os.SameFile(want, got) {
		t.Errorf("the pin shows another folder: %v", err)
	}
}
