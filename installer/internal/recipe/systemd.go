package recipe

import (
	"context"
	"path/filepath"
	"runtime"

	"git.jb.codes/jb/paseo-sandbox/installer/internal/setup"
)

// systemdPackages make a machine of the Pi rootfs: what they depend on comes
// with them, unless the rootfs has it.
var systemdPackages = []string{"systemd", "systemd-sysv"}

// mergedUsr are the links of a Debian whose folders lie below /usr; packages
// still name them.
var mergedUsr = []string{"bin", "lib", "lib64", "sbin"}

// Systemd is the recipe of what tests lay over the Pi rootfs to boot it: the
// files of Debian's systemd, unpacked and not configured. rootfs is the tree of
// the finished artifact, whose key it is bound to.
func Systemd(source, rootfs, rootfsKey string) (*setup.Recipe, error) {
	k, err := key(source, []string{"systemd.go"}, nil, []string{runtime.GOARCH, rootfsKey})
	if err != nil {
		return nil, err
	}
	download := func(ctx context.Context, b *setup.Bench, out string) error {
		args := []string{"apt-get", "install", "-y", "--download-only", "--no-install-recommends",
			"-o", "Dir::State::status=" + filepath.Join(rootfs, "var/lib/dpkg/status"),
			"-o", "Dir::State::extended_states=" + filepath.Join(out, "extended_states"),
			"-o", "Dir::Cache::archives=" + out, "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=",
			"-o", "Debug::NoLocking=1"}
		args = append(args, systemdPackages...)
		env := []string{"DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"}
		if b.Exec(ctx, out, env, args...) == nil {
			return nil
		}
		// The host's package lists may be old, or none.
		if err := b.Exec(ctx, out, env, "apt-get", "update"); err != nil {
			return err
		}
		return b.Exec(ctx, out, env, args...)
	}
	unpack := func(ctx context.Context, b *setup.Bench, out string) error {
		t := &tree{ctx: ctx, root: filepath.Join(out, "tree")}
		t.mkdir(".")
		for _, name := range mergedUsr {
			t.mkdirAll("usr/" + name)
			t.symlink("usr/"+name, name)
		}
		if t.err != nil {
			return setup.Errorf(setup.CodeStageFailed, t.err, "Look at the cause.", "the folders can't be made")
		}
		packages, err := filepath.Glob(filepath.Join(b.Output("download"), "*.deb"))
		if err != nil || len(packages) == 0 {
			return setup.Errorf(setup.CodeStageFailed, err, "Read the log of apt-get.", "no package came")
		}
		for _, p := range packages {
			const script = `dpkg-deb --fsys-tarfile "$1" | tar --extract --directory="$2" --keep-directory-symlink`
			if err := b.Exec(ctx, out, nil, "sh", "-c", script, "sh", p, t.root); err != nil {
				return err
			}
		}
		t.mustExecute("usr/lib/systemd/systemd")
		if t.err != nil {
			return setup.Errorf(setup.CodeStageFailed, t.err, "Look at the cause.", "systemd can't be unpacked")
		}
		return nil
	}
	const advice = "The tests need Debian's packages: run them on Debian."
	return &setup.Recipe{
		Name: "systemd", Key: k, Payload: "tree", Space: 256 << 20,
		Needs:  []setup.Tool{{Name: "apt-get", Advice: advice}, {Name: "dpkg-deb", Advice: advice}},
		Stages: []setup.Stage{{Name: "download", Run: download}, {Name: "unpack", Run: unpack}},
	}, nil
}
