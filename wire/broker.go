package wire

// Create asks the broker for a new session. Every field is a name or a
// validated value of the deployment's registry; none is a path, an argument
// or an environment variable (R10).
type Create struct {
	Type string `cbor:"type"`
	ID   uint64 `cbor:"id"`
	// Workspace is a handle of the deployment's registry. Exactly one of
	// Workspace and Path is given.
	Workspace string `cbor:"workspace,omitempty"`
	// Path is a folder as the client sees it, such as /workspace/site in the
	// daemon's container. The broker looks it up among the client paths of the
	// registry; it is never opened. It is absolute and in its shortest form, at
	// most MaxPath bytes.
	Path string `cbor:"path,omitempty"`
	// Folder names a folder below the workspace, where the registry allows it:
	// relative, in its shortest form, at most MaxPath bytes. Empty means the
	// workspace itself.
	Folder string `cbor:"folder,omitempty"`
	// Profile names a launch profile; empty means the deployment's default.
	Profile string `cbor:"profile,omitempty"`
	// AgentSession is Pi's own session id, to create or to resume:
	// [A-Za-z0-9][A-Za-z0-9._-]{0,63}. Empty lets the agent choose.
	AgentSession string `cbor:"agentSession,omitempty"`
	// Model satisfies ValidModel, Thinking ValidThinking. Both may be empty.
	Model    string `cbor:"model,omitempty"`
	Thinking string `cbor:"thinking,omitempty"`
	// Attachments are small files whose contents the sandbox can read.
	Attachments []Attachment `cbor:"attachments,omitempty"`
}

// AttachmentKind says what the agent does with an attachment.
type AttachmentKind string

// Kinds of attachments.
const (
	// AttachmentExtension is a Pi extension, loaded at start.
	AttachmentExtension AttachmentKind = "extension"
	// AttachmentMCPConfig is the configuration of Pi's MCP adapter; a session
	// has at most one.
	AttachmentMCPConfig AttachmentKind = "mcpConfig"
)

// Attachment is a small file that appears read-only below /attachments.
type Attachment struct {
	Kind AttachmentKind `cbor:"kind"`
	// Name is [A-Za-z0-9][A-Za-z0-9._-]{0,63}.
	Name string `cbor:"name"`
	Data []byte `cbor:"data"`
}

// Created answers Create: the session runs and its bridge accepts clients.
type Created struct {
	Type    string      `cbor:"type"`
	ID      uint64      `cbor:"id"`
	Session SessionInfo `cbor:"session"`
}

// InspectSession asks the broker for one session.
type InspectSession struct {
	Type    string    `cbor:"type"`
	ID      uint64    `cbor:"id"`
	Session SessionID `cbor:"session"`
}

// SessionReply answers InspectSession and TerminateSession.
type SessionReply struct {
	Type    string      `cbor:"type"`
	ID      uint64      `cbor:"id"`
	Session SessionInfo `cbor:"session"`
}

// ListSessions asks for the deployment's sessions in the order of their ids,
// after the given one. On the admin socket it lists those of all deployments.
type ListSessions struct {
	Type  string    `cbor:"type"`
	ID    uint64    `cbor:"id"`
	After SessionID `cbor:"after,omitempty"`
}

// SessionList answers ListSessions. More says that another page follows.
type SessionList struct {
	Type     string        `cbor:"type"`
	ID       uint64        `cbor:"id"`
	Sessions []SessionInfo `cbor:"sessions"`
	More     bool          `cbor:"more,omitempty"`
}

// SignalSession sends a signal to the session's first process. Done answers.
type SignalSession struct {
	Type    string    `cbor:"type"`
	ID      uint64    `cbor:"id"`
	Session SessionID `cbor:"session"`
	// Signal is INT, TERM, HUP, KILL, USR1 or USR2.
	Signal string `cbor:"signal"`
}

// TerminateSession ends the session's process: TERM, then KILL after the
// grace. SessionReply answers once it has ended.
type TerminateSession struct {
	Type    string    `cbor:"type"`
	ID      uint64    `cbor:"id"`
	Session SessionID `cbor:"session"`
	// GraceMillis is how long TERM may take, at most 60,000 ms; 0 means KILL
	// at once.
	GraceMillis uint64 `cbor:"graceMillis"`
}

// DeleteSession ends the session if it lives and removes everything that it
// left. It is idempotent, also for a session that never existed. Done answers.
type DeleteSession struct {
	Type    string    `cbor:"type"`
	ID      uint64    `cbor:"id"`
	Session SessionID `cbor:"session"`
}

// Reload makes the broker read its configuration again; admin socket only.
// Sessions go on. Done answers when the new one is in force; after an error
// the old one still is.
type Reload struct {
	Type string `cbor:"type"`
	ID   uint64 `cbor:"id"`
}

// Describe asks what the deployment offers. Deployment is for the admin socket
// only, where it is required.
type Describe struct {
	Type       string `cbor:"type"`
	ID         uint64 `cbor:"id"`
	Deployment string `cbor:"deployment,omitempty"`
}

// Deployment answers Describe. Host roots are told on the admin socket only.
type Deployment struct {
	Type           string          `cbor:"type"`
	ID             uint64          `cbor:"id"`
	Deployment     string          `cbor:"deployment"`
	Workspaces     []WorkspaceInfo `cbor:"workspaces"`
	Profiles       []string        `cbor:"profiles"`
	DefaultProfile string          `cbor:"defaultProfile"`
	// PeerUIDs are the users that may use the deployment; admin socket only.
	PeerUIDs []uint64 `cbor:"peerUids,omitempty"`
}

// WorkspaceInfo describes one registered workspace.
type WorkspaceInfo struct {
	Name     string `cbor:"name"`
	ReadOnly bool   `cbor:"readOnly,omitempty"`
	// Subfolders says that a session may name a folder below it.
	Subfolders bool `cbor:"subfolders,omitempty"`
	// ClientPath is where clients see the workspace, if that is registered.
	ClientPath string `cbor:"clientPath,omitempty"`
	// Root is the host folder; admin socket only.
	Root string `cbor:"root,omitempty"`
	// UID and GID are what the agent runs as.
	UID uint64 `cbor:"uid"`
	GID uint64 `cbor:"gid"`
}

// State is where a session is in its life.
type State string

// States. A session goes creating, running, exited, deleting, and is then
// forgotten; the others are told when they are true.
const (
	StateCreating State = "creating"
	StateRunning  State = "running"
	// StateUnattached: the process runs but its pipes are lost for good.
	StateUnattached State = "running-unattached"
	// StateStalled: the old bridge can't be ended, so no new one may start.
	StateStalled  State = "stalled"
	StateExited   State = "exited"
	StateDeleting State = "deleting"
)

// SessionInfo is what the broker knows of a session.
type SessionInfo struct {
	Session    SessionID `cbor:"session"`
	Deployment string    `cbor:"deployment"`
	Workspace  string    `cbor:"workspace"`
	// Folder is the folder below the workspace; empty means all of it.
	Folder  string `cbor:"folder,omitempty"`
	Profile string `cbor:"profile"`
	State   State  `cbor:"state"`
	Epoch   Epoch  `cbor:"epoch"`
	// Socket is the session's socket, relative to the folder of the broker's
	// socket, because a container sees that folder at another place.
	Socket string `cbor:"socket"`
	// CreatedAt is in milliseconds since 1970, UTC.
	CreatedAt uint64 `cbor:"createdAt"`
	// Container is runsc's container id.
	Container string `cbor:"container"`
	// A process is named by its pid and its start time in clock ticks since
	// boot (proc(5), stat field 22), because a pid alone can be reused.
	SandboxPID   uint64 `cbor:"sandboxPid,omitempty"`
	SandboxStart uint64 `cbor:"sandboxStart,omitempty"`
	BridgePID    uint64 `cbor:"bridgePid,omitempty"`
	BridgeStart  uint64 `cbor:"bridgeStart,omitempty"`
	Exit         *Exit  `cbor:"exit,omitempty"`
	// HasWriter says that a client is attached as writer, and VacantMillis for
	// how long none has been. Time in which the host was off or suspended does
	// not count.
	HasWriter    bool   `cbor:"hasWriter,omitempty"`
	VacantMillis uint64 `cbor:"vacantMillis,omitempty"`
	// Due is what the session's profile will have done to it in DueMillis if no
	// writer attaches; empty means nothing.
	Due       Due    `cbor:"due,omitempty"`
	DueMillis uint64 `cbor:"dueMillis,omitempty"`
}

// Due is what a policy does to a session.
type Due string

// What is done.
const (
	// DueEnd ends the process, with ReasonAbandoned.
	DueEnd Due = "end"
	// DueDelete removes a session that has ended.
	DueDelete Due = "delete"
)

// Kind implements Message.
func (Create) Kind() string { return "create" }

// Kind implements Message.
func (Created) Kind() string { return "created" }

// Kind implements Message.
func (InspectSession) Kind() string { return "inspectSession" }

// Kind implements Message.
func (SessionReply) Kind() string { return "session" }

// Kind implements Message.
func (ListSessions) Kind() string { return "listSessions" }

// Kind implements Message.
func (SessionList) Kind() string { return "sessionList" }

// Kind implements Message.
func (SignalSession) Kind() string { return "signalSession" }

// Kind implements Message.
func (TerminateSession) Kind() string { return "terminateSession" }

// Kind implements Message.
func (DeleteSession) Kind() string { return "deleteSession" }

// Kind implements Message.
func (Reload) Kind() string { return "reload" }

// Kind implements Message.
func (Describe) Kind() string { return "describe" }

// Kind implements Message.
func (Deployment) Kind() string { return "deployment" }
