package registry

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/trusted"
	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/pelletier/go-toml/v2"
)

// maxFile bounds one configuration file, in bytes.
const maxFile = 1 << 20

// Config is everything that the operator configured.
type Config struct {
	Runsc, Rootfs artifact.Location
	Bridge        Bridge
	Audit         Audit
	// Deployments are all that are registered, by id.
	Deployments map[string]*Deployment
}

// Bridge says which bridge to run, and as whom.
type Bridge struct {
	// Path is the program; empty means the one beside the broker's own.
	Path string `toml:"path"`
	// FirstUID and UIDCount are a range of user ids that nothing else on the
	// host uses; each session gets a pair of its own.
	FirstUID uint32 `toml:"first_uid"`
	UIDCount uint32 `toml:"uid_count"`
}

// Holds reports whether the uid is one of the range.
func (b Bridge) Holds(uid uint32) bool { return uid >= b.FirstUID && uid-b.FirstUID < b.UIDCount }

// Pair returns the users of one session's processes, of the bridge and of the
// reaper. There are Pairs of them.
func (b Bridge) Pair(i uint32) (bridge, reaper uint32) {
	return b.FirstUID + 2*i, b.FirstUID + 2*i + 1
}

// Pairs is how many sessions the range has users for.
func (b Bridge) Pairs() uint32 { return b.UIDCount / 2 }

// Audit says where the trail of decisions goes. Without a File it is part of
// the log.
type Audit struct {
	File string `toml:"file"`
	// MaxSize is when a file is rotated, in bytes; Files is how many there are
	// at most, with the one that is written.
	MaxSize Size `toml:"max_size"`
	Files   int  `toml:"files"`
}

// location is a table of broker.toml.
type location struct {
	Path     string `toml:"path"`
	Manifest string `toml:"manifest"`
	Digest   string `toml:"digest"`
}

type brokerFile struct {
	Runsc  location `toml:"runsc"`
	Rootfs location `toml:"rootfs"`
	Bridge Bridge   `toml:"bridge"`
	Audit  Audit    `toml:"audit"`
}

// Load reads broker.toml and deployments/*.toml. Every error has
// CodeInvalidConfig and names the file, and the line or the key.
func Load(l layout.Layout) (*Config, error) {
	etc, err := trusted.OpenDir(l.Etc)
	if err != nil {
		return nil, err
	}
	defer etc.Close()
	var f brokerFile
	if err := decode(etc, "broker.toml", &f); err != nil {
		return nil, err
	}
	c := &Config{
		Runsc: artifact.Location(f.Runsc), Rootfs: artifact.Location(f.Rootfs), Bridge: f.Bridge, Audit: f.Audit,
		Deployments: make(map[string]*Deployment),
	}
	if c.Rootfs.Path == "" && c.Rootfs.Manifest == "" {
		// An imported one is known by its digest.
		dir := l.Rootfs(strings.TrimPrefix(c.Rootfs.Digest, "sha256:"))
		c.Rootfs.Path, c.Rootfs.Manifest = dir+"/tree", dir+"/manifest"
	}
	if err := errors.Join(c.check(), c.Audit.complete()); err != nil {
		return nil, in(filepath.Join(l.Etc, "broker.toml"), err)
	}
	if err := c.loadDeployments(l); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Config) check() error {
	for name, a := range map[string]artifact.Location{"runsc": c.Runsc, "rootfs": c.Rootfs} {
		hex, ok := strings.CutPrefix(a.Digest, "sha256:")
		switch {
		case !cleanPath(a.Path):
			return bad(name+".path", "%q is not an absolute path in its shortest form", a.Path)
		case !cleanPath(a.Manifest):
			return bad(name+".manifest", "%q is not an absolute path in its shortest form", a.Manifest)
		case !ok || len(hex) != 64 || strings.Trim(hex, "0123456789abcdef") != "":
			return bad(name+".digest", "%.100q is not sha256: and 64 lower-case hex digits", a.Digest)
		}
	}
	const nobody = 65534 // also what an unmapped uid reads as
	b := c.Bridge
	switch {
	case b.Path != "" && !cleanPath(b.Path):
		return bad("bridge.path", "%q is not an absolute path in its shortest form", b.Path)
	case b.FirstUID == 0:
		return bad("bridge.first_uid", "it is missing or 0; a bridge never runs as root")
	case b.UIDCount < 2:
		return bad("bridge.uid_count", "it is missing or below 2: a session has two users")
	case uint64(b.FirstUID)+uint64(b.UIDCount) > wire.MaxUID || b.Holds(nobody):
		return bad("bridge.uid_count", "the range goes beyond the valid uids or holds %d, which means nobody", nobody)
	}
	return nil
}

func (a *Audit) complete() error {
	if a.File == "" {
		if *a != (Audit{}) {
			return bad("audit", "max_size and files belong to a file")
		}
		return nil
	}
	if a.MaxSize == 0 {
		a.MaxSize = 16 * MiB
	}
	if a.Files == 0 {
		a.Files = 4
	}
	switch {
	case !cleanPath(a.File):
		return bad("audit.file", "%q is not an absolute path in its shortest form", a.File)
	case a.MaxSize < minAudit || a.MaxSize > GiB:
		return bad("audit.max_size", "%d bytes are not between %d and %d", a.MaxSize, minAudit, GiB)
	case a.Files < 2 || a.Files > 99:
		return bad("audit.files", "%d is not between 2 and 99", a.Files)
	}
	return nil
}

// checkSessions makes sure that no deployment can take another's users.
func (c *Config) checkSessions() error {
	sum := 0
	for _, d := range c.Deployments {
		sum += d.MaxSessions
	}
	if pairs := int(c.Bridge.Pairs()); sum > pairs {
		return bad("bridge.uid_count", "the deployments may have %d sessions in all, and there are users for %d (two each)", sum, pairs)
	}
	return nil
}

func (c *Config) loadDeployments(l layout.Layout) error {
	path := filepath.Join(l.Etc, "deployments")
	dir, err := trusted.OpenDir(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return in(path, err)
	}
	slices.Sort(names)
	for _, name := range names {
		id, ok := strings.CutSuffix(name, ".toml")
		if !ok || !validID(id) {
			return in(filepath.Join(path, name), fmt.Errorf("the name is not ID.toml, with an id of lower-case letters, digits and '-', at most %d, the first no '-', and not \"admin\" or \"unknown\"", wire.MaxDeployment))
		}
		d := &Deployment{ID: id}
		if err := decode(dir, name, d); err != nil {
			return err
		}
		if err := d.complete(c.Bridge); err != nil {
			return in(filepath.Join(path, name), err)
		}
		if err := l.CheckNames(id, d.Container); err != nil {
			return err
		}
		c.Deployments[id] = d
	}
	if len(names) == 0 {
		return in(path, errors.New("there is no deployment"))
	}
	if err := c.checkSessions(); err != nil {
		return in(filepath.Join(l.Etc, "broker.toml"), err)
	}
	return c.checkRoots(l)
}

// Containers returns the ids with whether each is in a container.
func (c *Config) Containers() map[string]bool {
	m := make(map[string]bool, len(c.Deployments))
	for id, d := range c.Deployments {
		m[id] = d.Container
	}
	return m
}

// Homes returns the sizes of the bounded homes of all profiles, in bytes.
func (c *Config) Homes() []int64 {
	var sizes []int64
	for _, d := range c.Deployments {
		for _, p := range d.Profiles {
			if p.State != Unlimited {
				sizes = append(sizes, int64(p.State))
			}
		}
	}
	return sizes
}

// IDs returns the ids of the deployments in order.
func (c *Config) IDs() []string { return slices.Sorted(maps.Keys(c.Deployments)) }

func decode(dir *os.File, name string, to any) error {
	b, err := trusted.ReadFile(dir, name, maxFile)
	if err != nil {
		return err
	}
	d := toml.NewDecoder(strings.NewReader(string(b))).DisallowUnknownFields()
	err = d.Decode(to)
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	path := filepath.Join(dir.Name(), name)
	var unknown *toml.StrictMissingError
	var at *toml.DecodeError
	switch {
	case errors.As(err, &unknown):
		line, _ := unknown.Errors[0].Position()
		return in(fmt.Sprintf("%s:%d", path, line), fmt.Errorf("the key %s is not known", strings.Join(unknown.Errors[0].Key(), ".")))
	case errors.As(err, &at):
		line, _ := at.Position()
		if key := strings.Join(at.Key(), "."); key != "" {
			err = fmt.Errorf("%s: %w", key, err)
		}
		return in(fmt.Sprintf("%s:%d", path, line), err)
	}
	return in(path, err)
}

// validID reserves "admin" for the operator's socket, and "unknown" for what
// is left of sessions whose deployment nobody knows.
func validID(s string) bool {
	return s != "" && s != "admin" && s != "unknown" && len(s) <= wire.MaxDeployment && s[0] != '-' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func cleanPath(s string) bool {
	return filepath.IsAbs(s) && filepath.Clean(s) == s && s != "/" && !strings.ContainsRune(s, 0)
}

func bad(key, format string, args ...any) error {
	return fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...))
}

func in(place string, err error) error {
	return &wire.Error{
		Code: wire.CodeInvalidConfig, Message: place + ": " + err.Error(),
		Advice: "correct the file; the broker's README lists every key",
	}
}
