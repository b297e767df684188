package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/trusted"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// CodeInvalidRecord is the code of a record that can't be read.
const CodeInvalidRecord wire.Code = "invalid_record"

const (
	version = 1
	maxFile = 64 << 10
	suffix  = ".json"
	partial = ".partial"
)

// Record is what outlives the broker of one session.
type Record struct {
	Version    int            `json:"version"`
	Session    wire.SessionID `json:"session"`
	Deployment string         `json:"deployment"`
	// Container says where the deployment's sockets were when the session was
	// made.
	Container bool   `json:"container"`
	Workspace string `json:"workspace"`
	// Folder is the folder below the workspace; empty means all of it.
	Folder  string     `json:"folder,omitempty"`
	Profile string     `json:"profile"`
	State   wire.State `json:"state"`
	Epoch   wire.Epoch `json:"epoch"`
	// CreatedAt is in milliseconds since 1970, UTC.
	CreatedAt uint64 `json:"createdAt"`
	// Boot is the kernel's boot id: of another boot nothing is alive.
	Boot string `json:"boot"`
	// BridgeUID and ReaperUID are the users of the session's processes, its own
	// while the record stands.
	BridgeUID uint32 `json:"bridgeUid"`
	ReaperUID uint32 `json:"reaperUid"`
	// Custody is what another bridge of the session is started with.
	Custody Custody `json:"custody"`
	// Processes; the zero ID when there is none yet.
	Sandbox process.ID `json:"sandbox"`
	Reaper  process.ID `json:"reaper"`
	Bridge  process.ID `json:"bridge"`
	// Cgroup is the path of the sandbox's cgroup in its hierarchies.
	Cgroup string `json:"cgroup,omitempty"`
	// Terminated says that a client or an operator ordered the end.
	Terminated bool       `json:"terminated,omitempty"`
	Exit       *wire.Exit `json:"exit,omitempty"`
	// Policy is what the profile said when the session was made.
	Policy Policy `json:"policy"`
	// HasWriter says that the bridge was last heard to have a writer,
	// VacantSince since when it has had none, and EndedAt when the process was
	// seen to have ended. They are readings of Clock.
	HasWriter   bool   `json:"hasWriter,omitempty"`
	VacantSince uint64 `json:"vacantSince"`
	EndedAt     uint64 `json:"endedAt,omitempty"`
	// Released says that a writer has given the session up after its end.
	Released bool `json:"released,omitempty"`
	// Abandoned says that the policy has ordered the end.
	Abandoned bool `json:"abandoned,omitempty"`
}

// Policy says when what nobody needs is done away with, in milliseconds; 0 is
// never.
type Policy struct {
	// EndAbandoned is how long a process may run without a writer.
	EndAbandoned uint64 `json:"endAbandoned,omitempty"`
	// DeleteEnded is how long a session is kept after its end, without a
	// writer.
	DeleteEnded uint64 `json:"deleteEnded,omitempty"`
}

// Custody is what a bridge gets beside its descriptors, and how descriptors
// that come back from it are known.
type Custody struct {
	Framing    wire.Framing  `json:"framing"`
	MaxRecord  uint64        `json:"maxRecord"`
	MaxInput   uint64        `json:"maxInput"`
	SpoolLimit uint64        `json:"spoolLimit"`
	Overflow   wire.Overflow `json:"overflow"`
	PeerUIDs   []uint32      `json:"peerUids"`
	// Terminate says that the process is ended when nobody holds its pipes.
	Terminate   bool                             `json:"terminate,omitempty"`
	Descriptors map[wire.DescriptorName]Identity `json:"descriptors,omitempty"`
}

// Identity is what the kernel says of a descriptor: device, inode and type
// (stat(2)), and access mode (fcntl(2), F_GETFL).
type Identity struct {
	Dev    uint64 `json:"dev"`
	Ino    uint64 `json:"ino"`
	Type   uint32 `json:"type"`
	Access int    `json:"access"`
}

// Store is the folder of records. It is safe for concurrent use as long as
// each record has one writer at a time.
type Store struct{ dir string }

// Open returns the store in an existing folder.
func Open(dir string) *Store { return &Store{dir: dir} }

func (s *Store) path(id wire.SessionID) string { return filepath.Join(s.dir, string(id)+suffix) }

// Save writes the record and returns when it is durable. A crash leaves the
// old record or the new one.
func (s *Store) Save(r Record) error {
	r.Version = version
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	tmp := s.path(r.Session) + partial
	if err := writeDurably(tmp, append(b, '\n')); err != nil {
		return fmt.Errorf("save record: %w", errors.Join(err, os.Remove(tmp)))
	}
	if err := os.Rename(tmp, s.path(r.Session)); err != nil {
		return fmt.Errorf("save record: %w", err)
	}
	return s.sync()
}

func writeDurably(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Remove removes the record durably. It is idempotent.
func (s *Store) Remove(id wire.SessionID) error {
	if err := os.Remove(s.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record: %w", err)
	}
	return s.sync()
}

func (s *Store) sync() error {
	dir, err := os.Open(s.dir)
	if err != nil {
		return fmt.Errorf("sync records: %w", err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("sync records: %w", err)
	}
	return nil
}

// Load reads all records, and removes those whose writing was interrupted
// before they counted. A record that can't be understood is an error with
// CodeInvalidRecord: to guess would end a session, or leak one.
func (s *Store) Load() ([]Record, error) {
	dir, err := trusted.OpenDir(s.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	var all []Record
	for _, name := range names {
		if strings.HasSuffix(name, partial) {
			if err := os.Remove(filepath.Join(s.dir, name)); err != nil {
				return nil, fmt.Errorf("remove interrupted record: %w", err)
			}
			continue
		}
		b, err := trusted.ReadFile(dir, name, maxFile)
		if err != nil {
			return nil, err
		}
		r, err := decode(b)
		if err == nil && string(r.Session)+suffix != name {
			err = errors.New("it is the record of another session")
		}
		if err != nil {
			return nil, &wire.Error{
				Code: CodeInvalidRecord, Message: fmt.Sprintf("the session record %s can't be understood: %v", filepath.Join(s.dir, name), err),
				Advice: "move it away and start the broker, which then removes what the session left",
			}
		}
		all = append(all, r)
	}
	return all, nil
}

func decode(b []byte) (Record, error) {
	var r Record
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, err
	}
	if _, err := d.Token(); err != io.EOF {
		return r, errors.New("something follows it")
	}
	if r.Version != version {
		return r, fmt.Errorf("its version is %d, not %d", r.Version, version)
	}
	return r, r.Info().Validate()
}

// Info returns what clients are told, except for the socket.
func (r Record) Info() wire.SessionInfo {
	return wire.SessionInfo{
		Session: r.Session, Deployment: r.Deployment, Workspace: r.Workspace, Folder: r.Folder, Profile: r.Profile,
		State: r.State, Epoch: r.Epoch, CreatedAt: r.CreatedAt, Container: string(r.Session),
		SandboxPID: uint64(r.Sandbox.PID), SandboxStart: r.Sandbox.Start,
		BridgePID: uint64(r.Bridge.PID), BridgeStart: r.Bridge.Start, Exit: r.Exit,
	}
}
