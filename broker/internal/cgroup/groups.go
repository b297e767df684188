package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// mounted is where the hierarchies are (cgroups(7)).
const mounted = "/sys/fs/cgroup"

// controllers are those that limits need.
var controllers = []string{"cpu", "memory", "pids"}

// Groups are the cgroups of one broker.
type Groups struct {
	root   string
	v2     bool
	swap   bool
	parent string
}

// Open checks that the host can limit what a sandbox uses. The name, with a
// slash before it, is that of the parent of the sessions' groups. It is made to
// see whether it can be, and is there again while sessions are. Error:
// CodeLimitsUnavailable, which names what is missing.
func Open(name string) (*Groups, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, unavailable("the broker's own cgroup can't be told", "mount /proc", err)
	}
	return open(mounted, string(own), name)
}

// open is Open for a tree at root. own is what /proc/self/cgroup says.
func open(root, own, name string) (*Groups, error) {
	g := &Groups{root: root, parent: name}
	if _, err := os.Stat(root + "/cgroup.controllers"); err == nil {
		g.v2 = true
		g.parent = delegated(root, own) + name
	}
	for _, c := range controllers {
		if err := g.prepare(c); err != nil {
			return nil, errors.Join(err, g.RemoveEmpty(g.parent))
		}
	}
	_, err := os.Stat(g.file("memory", g.parent, g.pick("memory.memsw.limit_in_bytes", "memory.swap.max")))
	g.swap = err == nil
	return g, g.RemoveEmpty(g.parent)
}

// Path is the cgroup of a session, in each hierarchy.
func (g *Groups) Path(id wire.SessionID) string { return g.parent + "/" + string(id) }

// List returns one folder of each session's group.
func (g *Groups) List() (map[wire.SessionID]string, error) {
	parents, err := g.everywhere(g.parent)
	if err != nil {
		return nil, err
	}
	found := make(map[wire.SessionID]string)
	for _, dir := range parents {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return nil, fmt.Errorf("list cgroups: %w", err)
		}
		for _, e := range entries {
			if id := wire.SessionID(e.Name()); id.Valid() {
				found[id] = filepath.Join(dir, e.Name())
			}
		}
	}
	return found, nil
}

// Parent holds the groups of all sessions.
func (g *Groups) Parent() string { return g.parent }

// CountsSwap reports whether the kernel limits swap too. Without it a sandbox
// can have swapped out more than its memory.
func (g *Groups) CountsSwap() bool { return g.swap }

// Version says which cgroups the host has.
func (g *Groups) Version() string { return g.pick("v1", "v2") }

// delegated returns the group that systemd has given to the broker, if the
// broker has been put below it, and else "". A group that has processes can't
// have limited children in v2.
func delegated(root, own string) string {
	for line := range strings.Lines(own) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		up := filepath.Dir(filepath.Clean("/" + path))
		for _, name := range []string{"trusted.delegate", "user.delegate"} {
			value := make([]byte, 8)
			n, err := unix.Getxattr(filepath.Join(root, up), name, value)
			if err == nil && string(value[:n]) == "1" && up != "/" {
				return up
			}
		}
	}
	return ""
}

// prepare makes the parent able to have limits of the controller.
func (g *Groups) prepare(controller string) error {
	dir := g.dir(controller, g.parent)
	above := filepath.Dir(dir)
	if g.v2 {
		if have, err := words(above + "/cgroup.controllers"); err != nil || !slices.Contains(have, controller) {
			return unavailable("cgroup v2 has no controller "+controller+" here", "have the kernel enable it, not in a v1 hierarchy, or have systemd delegate it (Delegate=cpu memory pids)", err)
		}
	} else if _, err := os.Stat(above + "/cgroup.procs"); err != nil {
		return unavailable("there is no cgroup controller "+controller, "mount "+above+", or enable the controller on the kernel's command line", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		return unavailable("no cgroup can be made for the controller "+controller, "run the broker as root where cgroups are writable", err)
	}
	if g.v2 {
		for _, d := range []string{above, dir} {
			if err := enable(d+"/cgroup.subtree_control", controller); err != nil {
				return unavailable("the cgroup controller "+controller+" can't be enabled", "stop what runs in the cgroup "+strings.TrimPrefix(d, g.root)+" itself, or have systemd delegate it with DelegateSubgroup=", err)
			}
		}
	} else if _, err := os.Stat(dir + "/" + v1Files[controller]); err != nil {
		return unavailable("the cgroup controller "+controller+" has no limits", "use a kernel with "+v1Files[controller], err)
	}
	return nil
}

// enable hands a controller on to the children of a group.
func enable(file, controller string) error {
	have, err := words(file)
	if err != nil || slices.Contains(have, controller) {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString("+" + controller)
	return err
}

func words(file string) ([]string, error) {
	b, err := os.ReadFile(file)
	return strings.Fields(string(b)), err
}

// dir is the folder of a group in the hierarchy of a controller.
func (g *Groups) dir(controller, path string) string {
	if g.v2 {
		return filepath.Join(g.root, path)
	}
	return filepath.Join(g.root, controller, path)
}

func (g *Groups) file(controller, path, name string) string {
	return filepath.Join(g.dir(controller, path), name)
}

func (g *Groups) pick(v1, v2 string) string {
	if g.v2 {
		return v2
	}
	return v1
}

func unavailable(what, advice string, err error) error {
	return &wire.Error{Code: wire.CodeLimitsUnavailable, Message: fmt.Sprintf("sessions can't be limited: %s", what), Advice: advice, Err: err}
}
