package recipe

import (
	"context"
	"path"
	"path/filepath"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/installer/internal/setup"
)

// mountPoints exist beforehand, empty: the runtime would make a missing one in
// the rootfs on the host.
var mountPoints = []string{"attachments", "dev", "home/agent", "proc", "run", "state", "sys", "tmp", "var/tmp", "workspace"}

// emptied folders of the base system keep their name and lose their content.
var emptied = []string{"boot", "dev", "home", "media", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp",
	"usr/share/info", "usr/share/locale", "usr/share/man", "var/cache", "var/lib/apt", "var/log", "var/tmp"}

// dropped entries differ from build to build, name the host or the mirror, or
// serve logins, which a sandbox does not have.
var dropped = []string{"etc/.pwd.lock", "etc/apt/sources.list", "etc/fstab", "etc/group-", "etc/gshadow", "etc/gshadow-",
	"etc/hostname", "etc/hosts", "etc/machine-id", "etc/mtab", "etc/passwd-", "etc/resolv.conf", "etc/shadow", "etc/shadow-",
	"etc/subgid-", "etc/subuid-", "usr/share/bug", "usr/share/lintian", "var/lib/dbus", "var/lib/dpkg/lock",
	"var/lib/dpkg/lock-frontend", "var/lib/dpkg/status-old", "var/lib/dpkg/triggers/Lock"}

// keepDebian says which entries of the base system go into the rootfs.
func keepDebian(name string) bool {
	for _, dir := range emptied {
		if strings.HasPrefix(name, dir+"/") {
			return false
		}
	}
	for _, d := range dropped {
		if name == d || strings.HasPrefix(name, d+"/") {
			return false
		}
	}
	// Of the documentation the licences stay.
	if rest, ok := strings.CutPrefix(name, "usr/share/doc/"); ok && strings.Contains(rest, "/") {
		return path.Base(name) == "copyright"
	}
	return true
}

// keepPi drops npm's record of where each part came from.
func keepPi(name string) bool { return name != "node_modules/.package-lock.json" }

// assemble copies the parts into one tree, by a copy that can make nothing an
// artifact may not hold.
func (r *rootfs) assemble(ctx context.Context, b *setup.Bench, out string) error {
	t := &tree{ctx: ctx, root: filepath.Join(out, "tree")}
	t.mkdir(".")
	t.copyTree(filepath.Join(b.Output("debian"), "root"), ".", keepDebian)
	for _, dir := range append(mountPoints, "usr/local/bin", "usr/local/lib") {
		t.mkdirAll(dir)
	}
	t.copyFile(filepath.Join(b.Output("node"), "node"), "usr/local/bin/node", true)
	t.copyTree(b.Output("pi"), "usr/local/lib/pi", keepPi)
	t.symlink("../lib/pi/node_modules/"+piPackage+"/dist/cli.js", "usr/local/bin/pi")
	t.symlink("/usr/bin/fdfind", "usr/local/bin/fd")
	t.write("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n")
	t.write("etc/resolv.conf", "")
	for _, program := range []string{"usr/local/bin/node", "usr/local/bin/pi", "usr/bin/bash", "usr/bin/fdfind", "usr/bin/git", "usr/bin/rg", "usr/bin/tini"} {
		t.mustExecute(program)
	}
	t.settle()
	if t.err != nil {
		return setup.Errorf(setup.CodeStageFailed, t.err, "Look at the cause.", "the rootfs can't be put together")
	}
	return nil
}
