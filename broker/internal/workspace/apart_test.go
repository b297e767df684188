package workspace

import (
	"os"
	"path/filepath"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// R14: a workspace that is the broker's by another name, holds what is, or lies
// in it, is found whatever mounts make of the names.
func TestApart(t *testing.T) {
	for name, c := range map[string]struct {
		// change makes the alias at h.root, from what is in own.
		change func(t *testing.T, h host, own string)
		code   wire.Code
	}{
		"apart":                  {func(*testing.T, host, string) {}, ""},
		"an alias":               {func(t *testing.T, h host, own string) { bindTo(t, own, h.root) }, wire.CodeWorkspaceOverlaps},
		"an alias of a part":     {func(t *testing.T, h host, own string) { bindTo(t, own+"/state", h.root) }, wire.CodeWorkspaceOverlaps},
		"an alias of more":       {func(t *testing.T, h host, own string) { bindTo(t, filepath.Dir(own), h.root) }, wire.CodeWorkspaceOverlaps},
		"an alias of a neighbor": {func(t *testing.T, h host, own string) { bindTo(t, own+"-not", h.root) }, ""},
		"an alias of an alias": {func(t *testing.T, h host, own string) {
			must(t, os.Mkdir(h.base+"/other", 0o755))
			bindTo(t, own, h.base+"/other")
			bindTo(t, h.base+"/other/state", h.root)
		}, wire.CodeWorkspaceOverlaps},
		"what is mounted in it": {func(t *testing.T, h host, own string) {
			must(t, unix.Mount("tmpfs", own+"/state", "tmpfs", 0, "size=1m"))
			must(t, os.Mkdir(own+"/state/home", 0o755))
			bindTo(t, own+"/state/home", h.root)
		}, wire.CodeWorkspaceOverlaps},
		"a pin": {func(t *testing.T, h host, own string) {
			must(t, os.Mkdir(own+"/pins/one", 0o755))
			bindTo(t, h.root, own+"/pins/one")
		}, ""},
		"a file": {func(t *testing.T, h host, own string) { bindTo(t, h.base+"/keys", h.root) }, wire.CodeWorkspaceOverlaps},
		"beside a file": {func(t *testing.T, h host, own string) {
			must(t, os.Mkdir(h.base+"/keys/dir", 0o755))
			bindTo(t, h.base+"/keys/dir", h.root)
		}, ""},
		"procfs of its own": {func(t *testing.T, h host, own string) {
			must(t, unix.Mount("proc", h.root, "proc", 0, ""))
		}, wire.CodeWorkspaceOverlaps},
		"sysfs":        {func(t *testing.T, h host, own string) { bindTo(t, "/sys/kernel", h.root) }, wire.CodeWorkspaceOverlaps},
		"a part of it": {func(t *testing.T, h host, own string) { bindTo(t, "/dev", h.root) }, wire.CodeWorkspaceOverlaps},
		"below its own tmpfs": {func(t *testing.T, h host, own string) {
			must(t, unix.Mount("tmpfs", h.root, "tmpfs", 0, "size=1m"))
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			own := filepath.Join(h.base, "lib", "own")
			for _, dir := range []string{own + "/state", own + "/pins", own + "-not", h.base + "/keys"} {
				must(t, os.MkdirAll(dir, 0o755))
			}
			must(t, os.WriteFile(h.base+"/keys/key", nil, 0o600))
			c.change(t, h, own)
			d, err := Open(h.root)
			must(t, err)
			defer d.Close()
			err = d.Apart([]string{"/nonexistent", "/dev", own, h.base + "/keys/key"}, own+"/pins")
			switch {
			case c.code == "" && err != nil:
				t.Errorf("got %v", err)
			case c.code != "":
				wantRefusal(t, d, err, c.code, h.base)
			}
		})
	}
}

func bindTo(t *testing.T, from, to string) {
	t.Helper()
	must(t, unix.Mount(from, to, "", unix.MS_BIND, ""))
}

// The spot is that of the file system: the root and "/" are no special cases.
func TestSpots(t *testing.T) {
	on := func(root, point, path string) spot {
		return view{path: path, mount: mount{device: "8:1", root: root, point: point}}.spot()
	}
	for _, c := range []struct {
		a, b spot
		want bool
	}{
		{on("/", "/", "/var/lib"), on("/var", "/srv/x", "/srv/x/lib/y"), true},
		{on("/", "/", "/var/lib"), on("/var", "/srv/x", "/srv/x"), true},
		{on("/", "/", "/var/lib"), on("/var", "/srv/x", "/srv/x/lib2"), false},
		{on("/", "/mnt", "/mnt"), on("/var", "/srv/x", "/srv/x/lib2"), true},
		{on("/", "/", "/var/lib"), spot{"8:2", "/var/lib"}, false},
	} {
		if got := c.a.overlaps(c.b); got != c.want || c.b.overlaps(c.a) != got {
			t.Errorf("%v and %v: %v", c.a, c.b, got)
		}
	}
}
