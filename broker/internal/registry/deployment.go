package registry

import (
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Deployment is one Paseo installation that uses the broker.
type Deployment struct {
	ID string `toml:"-"`
	// PeerUIDs are the users that may use it.
	PeerUIDs []uint32 `toml:"peer_uids"`
	// Container puts its sockets where only a bind mount reaches them.
	Container      bool   `toml:"container"`
	DefaultProfile string `toml:"default_profile"`
	MaxSessions    int    `toml:"max_sessions"`
	// SpoolTotal bounds the sum of the spools of all its sessions, by what each
	// may hold; 0 means that MaxSessions does.
	SpoolTotal Size `toml:"spool_total"`
	// Network is what its sandboxes reach: NetworkNone.
	Network string `toml:"network"`
	// Credentials are files that its sandboxes can read.
	Credentials map[string]*Credential `toml:"credentials"`
	Workspaces  map[string]*Workspace  `toml:"workspaces"`
	Profiles    map[string]*Profile    `toml:"profiles"`
}

// NetworkNone is loopback only.
const NetworkNone = "none"

// Credential is a root-owned file of the host whose contents the agent finds,
// read-only, in its own folder of settings.
type Credential struct {
	File string `toml:"file"`
	// As is the file's name there, such as auth.json.
	As string `toml:"as"`
}

// Workspace is a folder that agents work in.
type Workspace struct {
	Root     string `toml:"root" json:"root"`
	ReadOnly bool   `toml:"read_only" json:"readOnly"`
	// Subfolders lets a session name a folder below the root.
	Subfolders bool `toml:"subfolders" json:"subfolders"`
	// ClientPath is where clients see the root, such as /workspace/site in a
	// container. It is compared, never opened. Empty means that only the
	// workspace's name leads to it.
	ClientPath string `toml:"client_path" json:"clientPath,omitempty"`
	// UID and GID are what the agent runs as; never 0.
	UID uint32 `toml:"uid" json:"uid"`
	GID uint32 `toml:"gid" json:"gid"`
}

// Kinds of profiles.
const (
	KindPi      = "pi"
	KindProgram = "program"
)

// Profile says what a session runs, and how much it may use.
type Profile struct {
	Kind string `toml:"kind" json:"kind"`
	// Command and Framing are the operator's, for KindProgram only (R10).
	Command []string     `toml:"command" json:"command,omitempty"`
	Framing wire.Framing `toml:"framing" json:"framing"`

	Memory    Size    `toml:"memory" json:"memory"`
	CPUs      float64 `toml:"cpus" json:"cpus,omitempty"`
	PIDs      int64   `toml:"pids" json:"pids"`
	OpenFiles uint64  `toml:"open_files" json:"openFiles"`
	Tmp       Size    `toml:"tmp" json:"tmp"`
	// State bounds the agent's home, which is on disk.
	State StateSize `toml:"state" json:"state"`
	Spool Size      `toml:"spool" json:"spool"`
	// Overflow says what happens when the spool is at its limit.
	Overflow  wire.Overflow `toml:"overflow" json:"overflow"`
	MaxRecord Size          `toml:"max_record" json:"maxRecord"`
	MaxInput  Size          `toml:"max_input" json:"maxInput"`
	// Unattached says what becomes of a process whose pipes are lost.
	Unattached string `toml:"unattached" json:"unattached"`
	// EndAbandoned is how long the process may run without a writer.
	EndAbandoned Period `toml:"end_abandoned" json:"endAbandoned"`
	// DeleteEnded is how long a session is kept after its end, unless its
	// writer releases it before.
	DeleteEnded Period `toml:"delete_ended" json:"deleteEnded"`
}

// What becomes of a process whose pipes are lost.
const (
	UnattachedLeave     = "leave"
	UnattachedTerminate = "terminate"
)

// Defaults and bounds.
const (
	MiB Size = 1 << 20
	GiB Size = 1 << 30

	defaultSessions = 16
	// The description of a deployment fits into one frame.
	maxWorkspaces = 64
	maxProfiles   = 64
	maxRoot       = 400

	minAudit       = 64 << 10
	maxClientPath  = 255 // so that the description fits
	maxCredentials = 16

	// spoolReserve is what the spool has to have beyond its largest record.
	spoolReserve = 16 * MiB
	minMemory    = 64 * MiB
	// minPeriod is well above what it takes a bridge to tell of a writer.
	minPeriod = time.Second
	minState  = 16 * MiB
)

// Period is a time after which something is done; 0, written "never", means that
// it is not.
type Period time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Period) UnmarshalText(text []byte) error {
	*p = 0
	if string(text) == "never" {
		return nil
	}
	d, err := time.ParseDuration(string(text))
	if err != nil || d < minPeriod {
		return fmt.Errorf("%.40q is neither \"never\" nor a time of at least %v, such as \"90m\" or \"72h\"", text, minPeriod)
	}
	*p = Period(d)
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (p Period) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

func (p Period) String() string {
	if p == 0 {
		return "never"
	}
	return time.Duration(p).String()
}

// Millis is the period in milliseconds, or 0.
func (p Period) Millis() uint64 { return uint64(time.Duration(p).Milliseconds()) }

// Size is a number of bytes, written as a number or with the suffix KiB, MiB
// or GiB.
type Size uint64

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(text []byte) error {
	digits, unit := string(text), uint64(1)
	for i, suffix := range []string{"KiB", "MiB", "GiB"} {
		if number, ok := strings.CutSuffix(digits, suffix); ok {
			digits, unit = strings.TrimSpace(number), 1<<(10*(i+1))
			break
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > math.MaxInt64/unit {
		return fmt.Errorf("%.40q is not a size: a number of bytes, or one with KiB, MiB or GiB", text)
	}
	*s = Size(n * unit)
	return nil
}

// StateSize is the size of a home, in bytes, or Unlimited.
type StateSize Size

// Unlimited is a home that the host's disk alone bounds: the operator's word
// for it is "unlimited".
const Unlimited StateSize = math.MaxUint64

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *StateSize) UnmarshalText(text []byte) error {
	if string(text) == "unlimited" {
		*s = Unlimited
		return nil
	}
	return (*Size)(s).UnmarshalText(text)
}

// MarshalText implements encoding.TextMarshaler.
func (s StateSize) MarshalText() ([]byte, error) {
	if s == Unlimited {
		return []byte("unlimited"), nil
	}
	return strconv.AppendUint(nil, uint64(s), 10), nil
}

// complete fills in the defaults and checks everything.
func (d *Deployment) complete(b Bridge) error {
	if d.MaxSessions == 0 {
		d.MaxSessions = defaultSessions
	}
	if d.Network == "" {
		d.Network = NetworkNone
	}
	switch {
	case len(d.PeerUIDs) == 0 || len(d.PeerUIDs) > wire.MaxPeerUIDs:
		return bad("peer_uids", "it names %d users, not 1 to %d", len(d.PeerUIDs), wire.MaxPeerUIDs)
	case slices.ContainsFunc(d.PeerUIDs, func(uid uint32) bool { return uid > wire.MaxUID || b.Holds(uid) }):
		return bad("peer_uids", "a uid is invalid, or belongs to the bridges")
	case d.MaxSessions < 0 || d.MaxSessions > int(b.Pairs()):
		return bad("max_sessions", "%d is not between 1 and half of bridge.uid_count, %d", d.MaxSessions, b.Pairs())
	case d.SpoolTotal > wire.MaxInteger:
		return bad("spool_total", "it is above 2^53-1 bytes")
	case d.Network != NetworkNone:
		return bad("network", "%.40q is not %q, the only one there is", d.Network, NetworkNone)
	case len(d.Credentials) > maxCredentials:
		return bad("credentials", "there are %d, at most %d", len(d.Credentials), maxCredentials)
	case len(d.Workspaces) == 0 || len(d.Workspaces) > maxWorkspaces:
		return bad("workspaces", "there are %d, not 1 to %d", len(d.Workspaces), maxWorkspaces)
	case len(d.Profiles) == 0 || len(d.Profiles) > maxProfiles:
		return bad("profiles", "there are %d, not 1 to %d", len(d.Profiles), maxProfiles)
	}
	clientPaths := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(d.Workspaces)) {
		w := d.Workspaces[name]
		if err := w.check(b, "workspaces."+name); err != nil || !wire.ValidName(name) {
			return orName("workspaces", name, err)
		}
		if clientPaths[w.ClientPath] {
			return bad("workspaces."+name+".client_path", "%q belongs to another workspace too", w.ClientPath)
		}
		clientPaths[w.ClientPath] = w.ClientPath != ""
	}
	for _, name := range slices.Sorted(maps.Keys(d.Profiles)) {
		p := d.Profiles[name]
		if err := p.complete("profiles." + name); err != nil || !wire.ValidName(name) {
			return orName("profiles", name, err)
		}
		if d.SpoolTotal != 0 && p.Spool > d.SpoolTotal {
			return bad("spool_total", "%d bytes are too few for one session of the profile %s, whose spool is %d", d.SpoolTotal, name, p.Spool)
		}
	}
	if err := d.checkCredentials(); err != nil {
		return err
	}
	if _, ok := d.Profiles[d.DefaultProfile]; !ok {
		return bad("default_profile", "there is no profile %.70q", d.DefaultProfile)
	}
	return nil
}

func (d *Deployment) checkCredentials() error {
	as := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(d.Credentials)) {
		c, key := d.Credentials[name], "credentials."+name
		switch {
		case !wire.ValidName(name):
			return orName("credentials", name, nil)
		case !cleanPath(c.File):
			return bad(key+".file", "%.400q is not an absolute path in its shortest form", c.File)
		case !wire.ValidName(c.As):
			return bad(key+".as", "%.80q is not a file's name of letters, digits, '.', '_' and '-'", c.As)
		case as[c.As]:
			return bad(key+".as", "two credentials are called %q", c.As)
		}
		as[c.As] = true
	}
	return nil
}

func orName(table, name string, err error) error {
	if wire.ValidName(name) {
		return err
	}
	return bad(table, "%.80q is not a name: letters, digits, '.', '_' and '-', at most %d, the first a letter or a digit", name, wire.MaxName)
}

func (w *Workspace) check(b Bridge, key string) error {
	switch {
	case !cleanPath(w.Root) || len(w.Root) > maxRoot:
		return bad(key+".root", "%.400q is not an absolute path in its shortest form, of at most %d bytes, below /", w.Root, maxRoot)
	case w.ClientPath != "" && (!cleanPath(w.ClientPath) || len(w.ClientPath) > maxClientPath):
		return bad(key+".client_path", "%.400q is not an absolute path in its shortest form, of at most %d bytes, below /", w.ClientPath, maxClientPath)
	case w.UID == 0 || w.UID > wire.MaxUID || b.Holds(w.UID):
		return bad(key+".uid", "it is missing, 0, invalid, or one of the bridges'; an agent never runs as root")
	case w.GID == 0 || w.GID > wire.MaxUID:
		return bad(key+".gid", "it is missing, 0 or invalid")
	}
	return nil
}

func (p *Profile) complete(key string) error {
	orDefault := func(v *Size, d Size) {
		if *v == 0 {
			*v = d
		}
	}
	orDefault(&p.Memory, GiB)
	orDefault(&p.Tmp, 256*MiB)
	orDefault(&p.MaxRecord, 128*MiB)
	orDefault(&p.Spool, 256*MiB)
	if p.State == 0 {
		p.State = StateSize(GiB)
	}
	if p.Kind == KindPi {
		orDefault(&p.MaxInput, 4*MiB) // Pi's reader is quadratic in the line
	}
	orDefault(&p.MaxInput, 80*MiB)
	if p.Unattached == "" {
		p.Unattached = UnattachedLeave
	}
	if p.Overflow == "" {
		p.Overflow = wire.OverflowBackpressure
	}
	if p.PIDs == 0 {
		p.PIDs = 512
	}
	if p.OpenFiles == 0 {
		p.OpenFiles = 4096
	}
	switch {
	case p.Memory < minMemory:
		return bad(key+".memory", "%d bytes are too few, a sandbox needs at least %d", p.Memory, minMemory)
	case p.PIDs < 64 || p.PIDs > 1<<22:
		return bad(key+".pids", "%d is not between 64 and %d", p.PIDs, 1<<22)
	case p.OpenFiles < 64 || p.OpenFiles > 1<<20:
		return bad(key+".open_files", "%d is not between 64 and %d", p.OpenFiles, 1<<20)
	case !(p.CPUs == 0 || p.CPUs >= 0.01 && p.CPUs <= 4096):
		return bad(key+".cpus", "%v is not between 0.01 and 4096", p.CPUs)
	case p.MaxRecord > p.Spool || p.Spool-p.MaxRecord < spoolReserve:
		return bad(key+".spool", "%d bytes are too few, it must hold max_record, %d, and %d more", p.Spool, p.MaxRecord, spoolReserve)
	case p.Overflow != wire.OverflowBackpressure && p.Overflow != wire.OverflowDropOldest:
		return bad(key+".overflow", "%.40q is neither %q nor %q", p.Overflow, wire.OverflowBackpressure, wire.OverflowDropOldest)
	case p.State != Unlimited && (p.State < StateSize(minState) || p.State > wire.MaxInteger):
		return bad(key+".state", "%d bytes are not between %d and 2^53-1, nor \"unlimited\"", p.State, minState)
	case p.Unattached != UnattachedLeave && p.Unattached != UnattachedTerminate:
		return bad(key+".unattached", "%.40q is neither %q nor %q", p.Unattached, UnattachedLeave, UnattachedTerminate)
	case max(p.Spool, p.MaxInput, p.Memory, p.Tmp) > wire.MaxInteger:
		return bad(key, "a size is above 2^53-1 bytes")
	}
	return p.checkKind(key)
}

func (p *Profile) checkKind(key string) error {
	switch p.Kind {
	case KindPi:
		if p.Command != nil || p.Framing != "" {
			return bad(key, "command and framing belong to the kind %q only", KindProgram)
		}
		p.Framing = wire.FramingPi
		return nil
	case KindProgram:
	default:
		return bad(key+".kind", "%.40q is neither %q nor %q", p.Kind, KindPi, KindProgram)
	}
	length := 0
	for _, arg := range p.Command {
		length += len(arg) + 1
		if strings.ContainsRune(arg, 0) {
			return bad(key+".command", "an argument contains a NUL byte")
		}
	}
	switch {
	case len(p.Command) == 0 || !filepath.IsAbs(p.Command[0]):
		return bad(key+".command", "its first element is not the absolute path of a program in the rootfs")
	case length > 64<<10:
		return bad(key+".command", "it is longer than 64 KiB")
	case p.Framing != wire.FramingLines && p.Framing != wire.FramingPi:
		return bad(key+".framing", "%.40q is neither %q nor %q", p.Framing, wire.FramingLines, wire.FramingPi)
	}
	return nil
}
