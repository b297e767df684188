package recipe

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"git.jb.codes/jb/paseo-sandbox/installer/internal/setup"
)

const source = "../.." // the installer folder

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The mirror is that of a plain suite of Debian, in either format of apt.
func TestMirror(t *testing.T) {
	const want = "http://mirror.example/debian"
	cases := []struct{ name, file, text, want string }{
		{"one line", "sources.list", "deb http://mirror.example/debian/ bookworm main contrib\n", want},
		{"options", "sources.list", "deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian trixie main\n", want},
		{"comment", "sources.list", "# deb http://other.example/debian bookworm main\ndeb http://mirror.example/debian bookworm main # ours\n", want},
		{"stanza", "sources.list.d/debian.sources", "Types: deb deb-src\n# a comment\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\nComponents: main\n", want},
		{"second stanza", "sources.list.d/debian.sources", "Types: deb\nURIs: http://s.example/debian-security\nSuites: bookworm-security\nComponents: main\n\nTypes: deb\nURIs:\n http://mirror.example/debian\nSuites: bookworm\nComponents: main\n", want},
		{"disabled", "sources.list.d/debian.sources", "Enabled: no\nTypes: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\n", ""},
		{"security only", "sources.list", "deb http://mirror.example/debian bookworm-security main\n", ""},
		{"third party", "sources.list.d/x.list", "deb https://apt.example/stable bookworm main\n", ""},
		{"no main", "sources.list", "deb http://mirror.example/debian bookworm contrib\n", ""},
		{"source only", "sources.list", "deb-src http://mirror.example/debian bookworm main\n", ""},
		{"not http", "sources.list", "deb cdrom:[x]/debian bookworm main\n", ""},
		{"other extension", "sources.list.d/x.list.disabled", "deb http://mirror.example/debian bookworm main\n", ""},
		{"malformed", "sources.list.d/x.sources", "\n\n:\n URIs\nTypes", ""},
		{"none", "other", "", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.Mkdir(filepath.Join(dir, "sources.list.d"), 0o755))
			must(t, os.WriteFile(filepath.Join(dir, c.file), []byte(c.text), 0o644))
			if got := Mirror(dir); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// A list of mirrors in a file is looked up.
func TestMirrorFile(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "mirrors"), []byte("http://mirror.example/debian\tpriority:1\nhttp://second.example/debian\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "sources.list"), []byte("deb mirror+file:"+dir+"/mirrors bookworm main\n"), 0o644))
	if got := Mirror(dir); got != "http://mirror.example/debian" {
		t.Errorf("got %q", got)
	}
}

// The committed lock pins every part by digest, names no registry, and holds
// all parts of the agent at one version.
func TestPiLock(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(source, "rootfs/pi/package-lock.json"))
	must(t, err)
	if strings.Contains(string(data), `"resolved"`) || strings.Contains(string(data), "://registry") {
		t.Error("the lock names a registry")
	}
	var lock struct {
		Packages map[string]struct{ Version, Integrity string }
	}
	must(t, json.Unmarshal(data, &lock))
	agent := lock.Packages["node_modules/"+piPackage].Version
	parts := 0
	for name, p := range lock.Packages {
		if name == "" {
			continue
		}
		if !strings.HasPrefix(p.Integrity, "sha512-") {
			t.Errorf("%s has no digest", name)
		}
		if strings.HasPrefix(name, "node_modules/@earendil-works/") {
			parts++
			if p.Version != agent {
				t.Errorf("%s is %s, the agent is %s", name, p.Version, agent)
			}
		}
	}
	if parts < 2 || agent == "" {
		t.Errorf("%d parts of agent %q", parts, agent)
	}
}

// A changed pin, a changed lock and a changed Go module give another key.
func TestKeyFollowsTheSource(t *testing.T) {
	copied := t.TempDir()
	must(t, os.CopyFS(copied, os.DirFS(source)))
	keys := func() (string, string) {
		runsc, err := Runsc(copied)
		must(t, err)
		rootfs, v, err := Rootfs(copied, "")
		must(t, err)
		if v.Node == "" || v.Pi == "" {
			t.Fatalf("versions %v", v)
		}
		return runsc.Key, rootfs.Key
	}
	runsc, rootfs := keys()
	again, rootfsAgain := keys()
	if runsc != again || rootfs != rootfsAgain {
		t.Error("the key differs from one run to the next")
	}
	for _, c := range []struct {
		file          string
		runsc, rootfs bool
	}{{"runsc/go.sum", true, false}, {"rootfs/pins.json", false, true}, {"rootfs/pi/package-lock.json", false, true}, {"README.md", false, false}} {
		name := filepath.Join(copied, c.file)
		data, err := os.ReadFile(name)
		must(t, err)
		must(t, os.WriteFile(name, append(data, '\n'), 0o644))
		newRunsc, newRootfs := keys()
		if (newRunsc != runsc) != c.runsc || (newRootfs != rootfs) != c.rootfs {
			t.Errorf("after a change of %s: runsc changed %v, rootfs changed %v", c.file, newRunsc != runsc, newRootfs != rootfs)
		}
		runsc, rootfs = newRunsc, newRootfs
	}
	must(t, os.Remove(filepath.Join(copied, "rootfs/pins.json")))
	_, _, err := Rootfs(copied, "")
	var e *setup.Error
	if !errors.As(err, &e) || e.Code != setup.CodeRecipe {
		t.Errorf("without pins: %v", err)
	}
}

// R16: the copy normalises owners and modes, cuts hard links, and knows no
// devices.
func TestCopyTree(t *testing.T) {
	from := t.TempDir()
	must(t, os.Mkdir(filepath.Join(from, "sub"), 0o700))
	must(t, os.WriteFile(filepath.Join(from, "sub/tool"), []byte("x"), 0o700))
	must(t, os.Chmod(filepath.Join(from, "sub/tool"), 0o777|os.ModeSetuid))
	must(t, os.Link(filepath.Join(from, "sub/tool"), filepath.Join(from, "again")))
	must(t, os.WriteFile(filepath.Join(from, "secret"), []byte("x"), 0o600))
	must(t, os.Symlink("/nowhere", filepath.Join(from, "link")))
	must(t, unix.Mkfifo(filepath.Join(from, "pipe"), 0o644))

	tr := &tree{ctx: t.Context(), root: filepath.Join(t.TempDir(), "tree")}
	tr.mkdir(".")
	tr.copyTree(from, "to", func(name string) bool { return name != "pipe" })
	tr.settle()
	must(t, tr.err)
	for name, want := range map[string]os.FileMode{".": 0o755 | os.ModeDir, "to/sub": 0o755 | os.ModeDir, "to/sub/tool": 0o755, "to/again": 0o755, "to/secret": 0o644} {
		st, err := os.Lstat(tr.path(name))
		must(t, err)
		if st.Mode() != want || !st.ModTime().Equal(epoch) {
			t.Errorf("%s has mode %v, time %v", name, st.Mode(), st.ModTime())
		}
	}
	var st unix.Stat_t
	must(t, unix.Stat(tr.path("to/again"), &st))
	if st.Nlink != 1 {
		t.Error("a hard link was kept")
	}
	if target, err := os.Readlink(tr.path("to/link")); err != nil || target != "/nowhere" {
		t.Errorf("got %q, %v", target, err)
	}

	all := &tree{ctx: t.Context(), root: filepath.Join(t.TempDir(), "tree")}
	all.copyTree(from, ".", func(string) bool { return true })
	if all.err == nil {
		t.Error("a named pipe was copied")
	}
}

// A copy stops when the run is interrupted.
func TestCopyTreeCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tr := &tree{ctx: ctx, root: filepath.Join(t.TempDir(), "tree")}
	tr.mkdir(".")
	tr.copyTree(source, "x", func(string) bool { return true })
	if !errors.Is(tr.err, context.Canceled) {
		t.Errorf("got %v", tr.err)
	}
}

// What names the host or differs between builds stays out; what is needed stays.
func TestKeepDebian(t *testing.T) {
	for name, want := range map[string]bool{
		"etc/passwd": true, "etc/ssl/certs/ca-certificates.crt": true, "usr/share/doc/git/copyright": true, "dev": true, "tmp": true,
		"usr/share/doc/git": true, "usr/share/zoneinfo/UTC": true, "etc/hosts.allow": true,
		"dev/null": false, "etc/shadow": false, "etc/resolv.conf": false, "etc/machine-id": false, "var/cache/apt/pkgcache.bin": false,
		"usr/share/doc/git/README": false, "usr/share/man/man1": false, "var/lib/apt/lists": false, "etc/apt/sources.list": false,
	} {
		if got := keepDebian(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A download with other bytes than pinned is refused, and the one member comes
// out whole.
func TestNodeTarball(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "n.tgz")
	f, err := os.Create(name)
	must(t, err)
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	for member, content := range map[string]string{"package/bin/node": "the node", "package/README.md": "no", "../evil": "no"} {
		must(t, w.WriteHeader(&tar.Header{Name: member, Typeflag: tar.TypeReg, Size: int64(len(content)), Mode: 0o4777}))
		_, err := w.Write([]byte(content))
		must(t, err)
	}
	must(t, errors.Join(w.Close(), z.Close(), f.Close()))
	data, err := os.ReadFile(name)
	must(t, err)
	sum := sha512.Sum512(data)
	good := "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
	must(t, checkIntegrity(name, good))
	var e *setup.Error
	if err := checkIntegrity(name, "sha512-"+strings.Repeat("A", 86)+"=="); !errors.As(err, &e) || e.Code != setup.CodeDownload {
		t.Errorf("got %v", err)
	}
	must(t, extractOne(name, "package/bin/node", filepath.Join(dir, "node")))
	st, err := os.Stat(filepath.Join(dir, "node"))
	must(t, err)
	if got, err := os.ReadFile(filepath.Join(dir, "node")); err != nil || string(got) != "the node" || st.Mode() != 0o755 {
		t.Errorf("got %q, %v, %v", got, st.Mode(), err)
	}
	if err := extractOne(name, "package/bin/other", filepath.Join(dir, "other")); err == nil {
		t.Error("a member that is not there was extracted")
	}
}

// What lies over a rootfs is bound to it.
func TestSystemdKey(t *testing.T) {
	one, err := Systemd(source, "/tree", "one")
	must(t, err)
	same, err := Systemd(source, "/elsewhere", "one")
	must(t, err)
	two, err := Systemd(source, "/tree", "two")
	must(t, err)
	if one.Key != same.Key || one.Key == two.Key {
		t.Errorf("got %s, %s, %s", one.Key, same.Key, two.Key)
	}
}
