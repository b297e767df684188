package wire

import "errors"

// Code is the stable snake_case name of an error. Programs decide by it;
// people read Message and Advice.
type Code string

// Valid reports whether the code has the form of one: [a-z][a-z0-9_]{0,63}.
func (c Code) Valid() bool {
	for i := range len(c) {
		letter := c[i] >= 'a' && c[i] <= 'z'
		if !letter && (i == 0 || c[i] != '_' && (c[i] < '0' || c[i] > '9')) {
			return false
		}
	}
	return c != "" && len(c) <= MaxName
}

// Codes that any peer may send.
const (
	CodeInvalidMessage     Code = "invalid_message"
	CodeUnknownMessage     Code = "unknown_message"
	CodeFrameTooLarge      Code = "frame_too_large"
	CodeFrameTruncated     Code = "frame_truncated"
	CodeUnsupportedVersion Code = "unsupported_version"
	CodeHelloRequired      Code = "hello_required"
	CodePermissionDenied   Code = "permission_denied"
	CodeInternal           Code = "internal_error"
	CodeTimeout            Code = "timeout"
	CodeTooManyConnections Code = "too_many_connections"
	CodeTooManyRequests    Code = "too_many_requests"
)

// Codes of the broker.
const (
	CodeUnknownWorkspace      Code = "unknown_workspace"
	CodeUnknownProfile        Code = "unknown_profile"
	CodeUnknownSession        Code = "unknown_session"
	CodeUnknownDeployment     Code = "unknown_deployment"
	CodeInvalidAttachment     Code = "invalid_attachment"
	CodeInvalidArgument       Code = "invalid_argument"
	CodeInvalidSignal         Code = "invalid_signal"
	CodeSessionNotRunning     Code = "session_not_running"
	CodeTooManySessions       Code = "too_many_sessions"
	CodeDeploymentSpoolFull   Code = "deployment_spool_full"
	CodeWorkspaceUnresolvable Code = "workspace_unresolvable"
	CodeWorkspaceHasMounts    Code = "workspace_has_mounts"
	CodeWorkspaceOverlaps     Code = "workspace_overlaps"
	CodeSubfoldersForbidden   Code = "subfolders_forbidden"
	CodeCredentialUnusable    Code = "credential_unusable"
	CodeDiskUnavailable       Code = "disk_unavailable"
	CodeLimitsUnavailable     Code = "limits_unavailable"
	CodeAuditUnavailable      Code = "audit_unavailable"
	CodeRestartRequired       Code = "restart_required"
	CodeRuntimeMissing        Code = "runtime_missing"
	CodeRuntimeFailed         Code = "runtime_failed"
	CodeRootfsMissing         Code = "rootfs_missing"
	CodeArtifactMismatch      Code = "artifact_digest_mismatch"
	CodeBridgeFailed          Code = "bridge_failed"
	CodeBrokerRunning         Code = "broker_already_running"
	CodeBrokerUnreachable     Code = "broker_unreachable"
	CodeRootRequired          Code = "root_required"
	CodeInvalidConfig         Code = "invalid_config"
	CodeAdminOnly             Code = "admin_only"
)

// Codes of a path or folder of a request, one for each way to be refused
// (R14).
const (
	// CodePathParent: an element is "..".
	CodePathParent Code = "path_parent"
	// CodePathAbsolute: a folder begins with "/".
	CodePathAbsolute Code = "path_absolute"
	// CodePathRelative: a path does not.
	CodePathRelative Code = "path_relative"
	CodePathNUL      Code = "path_nul"
	// CodePathNotClean: ".", "//" or a "/" at the end.
	CodePathNotClean Code = "path_not_clean"
	CodePathTooLong  Code = "path_too_long"
	// CodePathUnregistered: no workspace has it.
	CodePathUnregistered Code = "path_unregistered"
	// CodePathSymlink: a component is a symbolic link.
	CodePathSymlink   Code = "path_symlink"
	CodePathMissing   Code = "path_missing"
	CodePathNotFolder Code = "path_not_folder"
	// CodePathCrossesMount: something is mounted on a component below the
	// workspace.
	CodePathCrossesMount Code = "path_crosses_mount"
	// CodePathUnstable: it is renamed or mounted over all the time.
	CodePathUnstable Code = "path_unstable"
)

// Codes of the bridge.
const (
	CodeInvalidCursor         Code = "invalid_cursor"
	CodeReplayGap             Code = "replay_gap"
	CodeWriterAlreadyAttached Code = "writer_already_attached"
	CodeStaleWriter           Code = "stale_writer"
	CodeRuntimeNotWritable    Code = "runtime_not_writable"
	CodeInvalidAck            Code = "invalid_ack"
	CodeInvalidInput          Code = "invalid_input"
	CodeInputTooLarge         Code = "input_too_large"
	CodeInputIDConflict       Code = "input_id_conflict"
	CodeStorageFull           Code = "storage_full"
	CodeAlreadyAttached       Code = "already_attached"
	CodeNotAttached           Code = "not_attached"
	CodeRequestAnswered       Code = "request_already_answered"
)

// Error is the one shape of failure on the wire and in the programs.
type Error struct {
	// Code is stable; programs decide by it.
	Code Code
	// Message says what happened, as a sentence.
	Message string
	// Advice says what to do about it; it may be empty.
	Advice string
	// LostBefore accompanies CodeReplayGap: the oldest sequence still held.
	LostBefore uint64
	// Err is the cause on this side. It never travels.
	Err error
}

// Error returns the code, the sentence and the cause.
func (e *Error) Error() string {
	s := string(e.Code) + ": " + e.Message
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the local cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is compare by code, so that a sentinel with only a code
// matches every error of that code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// CodeOf returns the code of the first *Error in err's chain, or
// CodeInternal when there is none. It returns "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) && e != nil {
		return e.Code
	}
	return CodeInternal
}
