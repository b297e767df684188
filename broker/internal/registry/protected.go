package registry

import (
	"maps"
	"os"
	"path/filepath"
	"slices"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
)

// bridgeName is the bridge's program beside our own.
const bridgeName = "paseo-sandbox-bridge"

// Program is the path of the bridge's program.
func (b Bridge) Program() (string, error) {
	if b.Path != "" {
		return b.Path, nil
	}
	self, err := os.Executable()
	return filepath.Join(filepath.Dir(self), bridgeName), err
}

// Protected lists the files and folders of the host that no workspace may be,
// hold or lie in (R14): the kernel's, the broker's own with the state of all
// deployments, the artifacts, the audit, every deployment's credentials, and,
// if the workspace is writable, the programs. Of a file, what lies beside it is
// not protected.
//
// Workspaces may overlap each other, in one deployment or in several: that is
// the operator's choice, and each session has its own rights to what is shared.
func (c *Config) Protected(l layout.Layout, readOnly bool) ([]string, error) {
	all := []string{
		"/proc", "/sys", "/dev", l.Etc, l.Run, l.Var,
		c.Runsc.Path, c.Runsc.Manifest, c.Rootfs.Path, c.Rootfs.Manifest,
	}
	if c.Audit.File != "" {
		all = append(all, c.Audit.File)
	}
	for _, d := range c.Deployments {
		for _, credential := range d.Credentials {
			all = append(all, credential.File)
		}
	}
	if readOnly {
		return all, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	bridge, err := c.Bridge.Program()
	return append(all, self, bridge), err
}

// checkRoots refuses a workspace that overlaps what is protected, by the paths
// alone; at each create the folders themselves are compared.
func (c *Config) checkRoots(l layout.Layout) error {
	for _, id := range c.IDs() {
		d := c.Deployments[id]
		for _, name := range slices.Sorted(maps.Keys(d.Workspaces)) {
			w := d.Workspaces[name]
			protected, err := c.Protected(l, w.ReadOnly)
			if err != nil {
				return err
			}
			for _, path := range protected {
				if within(w.Root, path) || within(path, w.Root) {
					return in(filepath.Join(l.Etc, "deployments", id+".toml"), bad("workspaces."+name+".root", "%q overlaps %q, which is the broker's, or the kernel's", w.Root, path))
				}
			}
		}
	}
	return nil
}
