package layout

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/trusted"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Layout is where the three trees are.
type Layout struct{ Etc, Run, Var string }

// Default is the layout of an installed system.
var Default = Layout{Etc: "/etc/paseo-sandbox", Run: "/run/paseo-sandbox", Var: "/var/lib/paseo-sandbox"}

// At returns the layout with all trees below one folder: etc, run and var. An
// empty prefix means Default. Error: CodeInvalidConfig when the prefix is not
// an absolute path in its shortest form.
func At(prefix string) (Layout, error) {
	if prefix == "" {
		return Default, nil
	}
	l := Layout{Etc: prefix + "/etc", Run: prefix + "/run", Var: prefix + "/var"}
	if !filepath.IsAbs(prefix) || filepath.Clean(prefix) != prefix || prefix == "/" {
		return l, refuse("the prefix %q is not an absolute path in its shortest form", prefix)
	}
	return l, nil
}

// CheckNames refuses a deployment whose sockets would have a path that is too
// long for the kernel (unix(7)).
func (l Layout) CheckNames(deployment string, container bool) error {
	socket := l.Session(deployment, container, wire.SessionID(strings.Repeat("0", 32))).Socket
	if n := len(socket); n > wire.MaxSocketPath {
		return refuse("the sockets of sessions, such as %q, have paths that are %d bytes too long; shorten the prefix or the deployment's id", socket, n-wire.MaxSocketPath)
	}
	return nil
}

// Paths that belong to no session.
func (l Layout) Admin() string       { return l.Run + "/admin" }
func (l Layout) AdminSocket() string { return l.Admin() + "/broker.sock" }
func (l Layout) Lock() string        { return l.Run + "/broker.lock" }
func (l Layout) Runsc() string       { return l.Run + "/runsc" }
func (l Layout) RunscLogs() string   { return l.Run + "/log" }
func (l Layout) Mounts() string      { return l.Run + "/mounts" }
func (l Layout) Custody() string     { return l.Run + "/custody" }
func (l Layout) RootfsPin() string   { return l.Mounts() + "/rootfs" }
func (l Layout) Clock() string       { return l.Var + "/clock" }
func (l Layout) Records() string     { return l.Var + "/sessions" }
func (l Layout) Bundles() string     { return l.Var + "/bundles" }
func (l Layout) Spools() string      { return l.Var + "/spool" }
func (l Layout) States() string      { return l.Var + "/state" }

// Rootfs is the folder of an imported root file system, by the hex digits of
// its digest.
func (l Layout) Rootfs(digest string) string { return l.Var + "/rootfs/" + digest }

// CgroupParent is the cgroup, in each hierarchy, that holds those of the
// sessions. Each broker has its own, so that none removes another's.
func (l Layout) CgroupParent() string {
	if l == Default {
		return "/paseo-sandbox"
	}
	sum := sha256.Sum256([]byte(l.Run))
	return fmt.Sprintf("/paseo-sandbox-%x", sum[:4])
}

// Deployment is the folder of a deployment's sockets. Those of a deployment in
// a container lie in a closed folder: a bind mount gets by it, a host process
// of the same user does not.
func (l Layout) Deployment(id string, container bool) string {
	if container {
		return l.Run + "/c/" + id
	}
	return l.Run + "/d/" + id
}

// BrokerSocket is the deployment's broker socket.
func (l Layout) BrokerSocket(id string, container bool) string {
	return l.Deployment(id, container) + "/broker.sock"
}

// Session holds the paths of one session.
//
// State is the image of the agent's home, which is mounted at Home, or the
// home itself, if its size is not bounded.
type Session struct{ Pin, Home, Bundle, Attachments, Spool, State, Socket, Custody string }

// homeSuffix tells the mount of a home from the pin beside it.
const homeSuffix = ".home"

// SocketName is the session's socket, relative to its deployment's folder.
func SocketName(id wire.SessionID) string { return "s/" + string(id) + ".sock" }

// Session returns the paths of a session.
func (l Layout) Session(deployment string, container bool, id wire.SessionID) Session {
	return Session{
		Pin:         l.Mounts() + "/" + string(id),
		Home:        l.Mounts() + "/" + string(id) + homeSuffix,
		Bundle:      l.Bundles() + "/" + string(id),
		Attachments: l.Bundles() + "/" + string(id) + "/attachments",
		Spool:       l.Spools() + "/" + string(id),
		State:       l.States() + "/" + string(id),
		Custody:     l.Custody() + "/" + string(id),
		Socket:      l.Deployment(deployment, container) + "/" + SocketName(id),
	}
}

// Folder is a folder that the broker makes, with its exact mode.
type Folder struct {
	Path string
	Mode os.FileMode
}

// Folders lists what Prepare makes, parents first. The deployments are given
// by id with whether they are in a container. Users walk through the folders
// of sockets and can't list them: ids of deployments and sessions are not
// theirs to see (R12).
func (l Layout) Folders(deployments map[string]bool) []Folder {
	all := []Folder{
		{l.Run, 0o755}, {l.Run + "/d", 0o711}, {l.Run + "/c", 0o700}, {l.Admin(), 0o700},
		{l.Runsc(), 0o700}, {l.RunscLogs(), 0o700}, {l.Mounts(), 0o700}, {l.Custody(), 0o700},
		{l.Var, 0o700}, {l.Records(), 0o700}, {l.Bundles(), 0o700}, {l.Spools(), 0o700}, {l.States(), 0o700},
	}
	for id, container := range deployments {
		dir := l.Deployment(id, container)
		all = append(all, Folder{dir, 0o711}, Folder{dir + "/s", 0o711})
	}
	return all
}

// Prepare makes the folders with their modes. It is idempotent.
func (l Layout) Prepare(deployments map[string]bool) error {
	for _, f := range l.Folders(deployments) {
		if err := trusted.MakeDir(f.Path, f.Mode); err != nil {
			return err
		}
	}
	return nil
}

// Remove removes a file or socket; one that is gone is no error.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func refuse(format string, args ...any) error {
	return &wire.Error{Code: wire.CodeInvalidConfig, Message: fmt.Sprintf(format, args...), Advice: "choose another place, or mend it as root and start again"}
}
