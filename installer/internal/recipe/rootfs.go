package recipe

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/installer/internal/setup"
)

// Versions are what the rootfs is pinned to, for the index.
type Versions struct{ Node, Pi string }

type pins struct {
	Debian struct {
		Suite    string   `json:"suite"`
		Packages []string `json:"packages"`
	} `json:"debian"`
	Node struct {
		Version string  `json:"version"`
		AMD64   nodePin `json:"amd64"`
		ARM64   nodePin `json:"arm64"`
	} `json:"node"`
}

type nodePin struct {
	Package   string `json:"package"`
	Integrity string `json:"integrity"` // as npm writes it: "sha512-" and base64
}

// The agent's own package, and the paths that the pinned parts have in the tree.
const (
	piPackage = "@earendil-works/pi-coding-agent"
	keyring   = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// rootfs holds what the stages share.
type rootfs struct {
	source string
	mirror string
	pins   pins
	node   nodePin
}

// Rootfs is the recipe of the Pi rootfs. mirror is the Debian mirror, empty for
// the one debootstrap knows.
func Rootfs(source, mirror string) (*setup.Recipe, Versions, error) {
	r := &rootfs{source: filepath.Join(source, "rootfs"), mirror: mirror}
	var lock struct {
		Packages map[string]struct {
			Version string `json:"version"`
		} `json:"packages"`
	}
	var v Versions
	for name, into := range map[string]any{"pins.json": &r.pins, "pi/package-lock.json": &lock} {
		data, err := os.ReadFile(filepath.Join(r.source, name))
		if err == nil {
			err = json.Unmarshal(data, into)
		}
		if err != nil {
			return nil, v, setup.Errorf(setup.CodeRecipe, err, recipeAdvice, "the file %s of the recipe can't be used", name)
		}
	}
	v = Versions{Node: r.pins.Node.Version, Pi: lock.Packages["node_modules/"+piPackage].Version}
	switch runtime.GOARCH {
	case "amd64":
		r.node = r.pins.Node.AMD64
	case "arm64":
		r.node = r.pins.Node.ARM64
	}
	if r.node.Package == "" || v.Node == "" || v.Pi == "" {
		return nil, v, setup.Errorf(setup.CodeRecipe, nil, "Use an amd64 or arm64 host.", "the recipe pins no Node or no Pi for %s", runtime.GOARCH)
	}
	k, err := key(r.source, []string{"rootfs.go", "assemble.go", "copy.go"},
		[]string{"pins.json", "pi/package.json", "pi/package-lock.json"}, []string{runtime.GOARCH})
	if err != nil {
		return nil, v, err
	}
	return &setup.Recipe{
		Name: "rootfs", Key: k, Payload: "tree", Space: 2 << 30,
		Needs: []setup.Tool{
			{Name: "debootstrap", Package: "debootstrap", Advice: "Install debootstrap."},
			{Name: "gpgv", Package: "gpgv", Advice: "Install gpgv (GnuPG)."},
			{Name: keyring, Package: "debian-archive-keyring", Advice: "Install Debian's archive keyring as " + keyring + "."},
			{Name: "npm", Package: "npm", Advice: "Install npm."},
		},
		Stages: []setup.Stage{
			{Name: "debian", Run: r.debian},
			{Name: "node", Run: r.fetchNode},
			{Name: "pi", Run: r.installPi},
			{Name: "assemble", Run: r.assemble},
		},
	}, v, nil
}

// debian makes the base system. Signatures are checked, whatever the mirror.
// Debian and Go call both architectures the same.
func (r *rootfs) debian(ctx context.Context, b *setup.Bench, out string) error {
	args := []string{"debootstrap", "--variant=minbase", "--force-check-gpg", "--keyring=" + keyring, "--merged-usr", "--arch=" + runtime.GOARCH,
		"--include=" + strings.Join(r.pins.Debian.Packages, ","), r.pins.Debian.Suite, filepath.Join(out, "root")}
	if r.mirror != "" {
		args = append(args, r.mirror)
	}
	return b.Exec(ctx, out, []string{"DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"}, args...)
}

// fetchNode gets the npm package that ships the Node binary, holds it to the
// pinned digest and takes the one file out of it. No script of it runs.
func (r *rootfs) fetchNode(ctx context.Context, b *setup.Bench, out string) error {
	spec := r.node.Package + "@" + r.pins.Node.Version
	if err := b.Exec(ctx, out, nil, "npm", "pack", "--ignore-scripts", "--no-update-notifier", "--loglevel=http", spec); err != nil {
		return err
	}
	tarball := filepath.Join(out, fmt.Sprintf("%s-%s.tgz", r.node.Package, r.pins.Node.Version))
	if err := checkIntegrity(tarball, r.node.Integrity); err != nil {
		return err
	}
	if err := extractOne(tarball, "package/bin/node", filepath.Join(out, "node")); err != nil {
		return setup.Errorf(setup.CodeStageFailed, err, "Compare the pin with the package.", "Node can't be taken out of %s", spec)
	}
	return os.Remove(tarball)
}

// installPi installs what the lock names, all of it with digests. The lock has
// every part at one depth, as the agent's own shrinkwrap has; a plain install
// would ignore that shrinkwrap and take newer parts.
func (r *rootfs) installPi(ctx context.Context, b *setup.Bench, out string) error {
	for _, name := range []string{"package.json", "package-lock.json"} {
		data, err := os.ReadFile(filepath.Join(r.source, "pi", name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, name), data, 0o644); err != nil {
			return err
		}
	}
	return b.Exec(ctx, out, nil, "npm", "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund",
		"--no-update-notifier", "--engine-strict=false", "--loglevel=http")
}
