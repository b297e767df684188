package wire

import (
	"slices"
	"strings"
)

// Validate implements Message.
func (m Create) Validate() error {
	return first(
		checkID(m.ID),
		check((m.Workspace == "") != (m.Path == ""), CodeInvalidArgument, "exactly one of workspace and path is given"),
		checkOptionalName("workspace", m.Workspace),
		checkPath(m.Path),
		checkFolder(m.Folder),
		checkOptionalName("profile", m.Profile),
		checkOptionalName("agentSession", m.AgentSession),
		check(m.Model == "" || ValidModel(m.Model), CodeInvalidArgument, "model %.80q is not PROVIDER/MODEL", m.Model),
		check(m.Thinking == "" || ValidThinking(m.Thinking), CodeInvalidArgument, "there is no thinking level %.40q; there are %v", m.Thinking, thinkingLevels),
		checkAttachments(m.Attachments),
	)
}

func checkAttachments(attachments []Attachment) error {
	names := make([]string, 0, len(attachments))
	total, configs := 0, 0
	for i := range attachments {
		a := &attachments[i]
		err := first(
			check(a.Kind == AttachmentExtension || a.Kind == AttachmentMCPConfig, CodeInvalidAttachment, "there is no kind %.40q of attachment", a.Kind),
			check(ValidName(a.Name), CodeInvalidAttachment, "%.70q can't name an attachment", a.Name),
		)
		if err != nil {
			return err
		}
		names = append(names, a.Name)
		total += len(a.Data)
		if a.Kind == AttachmentMCPConfig {
			configs++
		}
	}
	return first(
		checkCount(CodeInvalidAttachment, "attachments", len(attachments), 0, MaxAttachments),
		checkUnique(CodeInvalidAttachment, "attachments", names),
		check(configs <= 1, CodeInvalidAttachment, "there are %d MCP configurations; a session has at most one", configs),
		check(total <= MaxAttachmentBytes, CodeInvalidAttachment, "the attachments have %d bytes together, the limit is %d", total, MaxAttachmentBytes),
	)
}

// Validate implements Message.
func (m Created) Validate() error { return first(checkID(m.ID), m.Session.Validate()) }

// Validate implements Message.
func (m InspectSession) Validate() error { return first(checkID(m.ID), checkSession(m.Session)) }

// Validate implements Message.
func (m SessionReply) Validate() error { return first(checkID(m.ID), m.Session.Validate()) }

// Validate implements Message.
func (m ListSessions) Validate() error {
	if m.After == "" {
		return checkID(m.ID)
	}
	return first(checkID(m.ID), checkSession(m.After))
}

// Validate implements Message.
func (m SessionList) Validate() error {
	return first(
		checkID(m.ID),
		checkCount(CodeInvalidMessage, "sessions", len(m.Sessions), 0, MaxSessionPage),
		checkEach(m.Sessions, func(s *SessionInfo) error { return s.Validate() }),
	)
}

// Validate implements Message.
func (m SignalSession) Validate() error {
	return first(checkID(m.ID), checkSession(m.Session), checkSignal(m.Signal))
}

// Validate implements Message.
func (m TerminateSession) Validate() error {
	return first(checkID(m.ID), checkSession(m.Session), checkGrace(m.GraceMillis))
}

// Validate implements Message.
func (m DeleteSession) Validate() error { return first(checkID(m.ID), checkSession(m.Session)) }

// Validate implements Message.
func (m Reload) Validate() error { return checkID(m.ID) }

// Validate implements Message.
func (m Describe) Validate() error {
	if m.Deployment == "" {
		return checkID(m.ID)
	}
	return first(checkID(m.ID), checkDeployment(m.Deployment))
}

// Validate implements Message.
func (m Deployment) Validate() error {
	return first(
		checkID(m.ID),
		checkDeployment(m.Deployment),
		checkCount(CodeInvalidMessage, "workspaces", len(m.Workspaces), 0, maxElements),
		checkEach(m.Workspaces, func(w *WorkspaceInfo) error { return w.Validate() }),
		checkCount(CodeInvalidMessage, "profiles", len(m.Profiles), 0, maxElements),
		checkEach(m.Profiles, func(p *string) error { return checkName("profile", *p) }),
		checkOptionalName("defaultProfile", m.DefaultProfile),
		checkUIDs("peerUids", m.PeerUIDs),
	)
}

// Validate checks the limits of the fields.
func (w WorkspaceInfo) Validate() error {
	return first(
		checkName("workspace", w.Name),
		checkText(CodeInvalidMessage, "root", w.Root, 0, MaxText),
		check(w.Root == "" || w.Root[0] == '/', CodeInvalidMessage, "the root of a workspace is an absolute path"),
		checkPath(w.ClientPath),
		check(w.UID <= MaxUID && w.GID <= MaxUID, CodeInvalidMessage, "uid and gid are below 2^32-1"),
	)
}

var states = []State{StateCreating, StateRunning, StateUnattached, StateStalled, StateExited, StateDeleting}

// Validate checks the limits of the fields. What a session gets only on its
// way to running may be empty: epoch, socket and container.
func (s SessionInfo) Validate() error {
	return first(
		checkSession(s.Session),
		checkDeployment(s.Deployment),
		checkName("workspace", s.Workspace),
		checkFolder(s.Folder),
		checkName("profile", s.Profile),
		check(slices.Contains(states, s.State), CodeInvalidMessage, "there is no state %.40q", s.State),
		check(s.Epoch == "" || s.Epoch.Valid(), CodeInvalidMessage, "an epoch is 16 lower-case hex digits, %.40q is not", s.Epoch),
		checkText(CodeInvalidMessage, "socket", s.Socket, 0, MaxSocketPath),
		check(validSocket(s.Socket), CodeInvalidMessage, "the socket %.120q is not a path below the folder of the broker's socket", s.Socket),
		checkOptionalName("container", s.Container),
		checkExit(s.Exit),
		check(s.Due == "" || slices.Contains(dues, s.Due), CodeInvalidMessage, "nothing that is due is called %.40q", s.Due),
	)
}

var dues = []Due{DueEnd, DueDelete}

// validSocket keeps a client from being led out of the folder that it trusts.
func validSocket(path string) bool {
	if path == "" {
		return true
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." || strings.ContainsRune(part, 0) {
			return false
		}
	}
	return true
}
