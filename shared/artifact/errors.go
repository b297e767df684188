package artifact

import (
	"errors"
	"fmt"
	"io/fs"
)

// Codes of [Error]. They are stable.
const (
	CodeMissing         = "artifact_missing"          // the artifact, or its manifest, does not exist
	CodeManifestInvalid = "artifact_manifest_invalid" // the manifest breaks the format or a limit
	CodeDigestMismatch  = "artifact_digest_mismatch"  // the content is not what the digest or the manifest says
	CodeIdentityChanged = "artifact_identity_changed" // an inode, owner or mode is not the one seen when it was opened
	CodeNotRootOwned    = "artifact_not_root_owned"   // someone beside root can change it
	CodeForbiddenEntry  = "artifact_forbidden_entry"  // a kind of entry or a mode that an artifact may not have
	CodeUnreadable      = "artifact_unreadable"       // a system call failed
	CodeCancelled       = "artifact_check_cancelled"  // the caller's context ended
)

// Error is the one error type of this package.
type Error struct {
	Code    string // one of the Code constants
	Message string // what happened
	Advice  string // what to do about it
	Err     error  // the cause; may be nil
}

func (e *Error) Error() string {
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ErrorCode returns the stable code.
func (e *Error) ErrorCode() string { return e.Code }

// ErrorAdvice returns what to do.
func (e *Error) ErrorAdvice() string { return e.Advice }

var advice = map[string]string{
	CodeMissing:         "Build the artifact with the set-up, or correct its path in the configuration.",
	CodeManifestInvalid: "Build the artifact again; a manifest is never edited.",
	CodeDigestMismatch:  "Build the artifact again, and find out what changed it: only root could.",
	CodeIdentityChanged: "Verify the artifact in full, then open it again.",
	CodeNotRootOwned:    "Put the artifact where every parent directory belongs to root and is not writable by others, and build it as root.",
	CodeForbiddenEntry:  "Remove the entry from the recipe and build the artifact again.",
	CodeUnreadable:      "Look at the cause; the artifact was not used.",
	CodeCancelled:       "Run the check again.",
}

func errorf(code string, cause error, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Advice: advice[code], Err: cause}
}

// ioError tells "it is not there" from every other failure.
func ioError(cause error, format string, args ...any) *Error {
	if errors.Is(cause, fs.ErrNotExist) {
		return errorf(CodeMissing, cause, format, args...)
	}
	return errorf(CodeUnreadable, cause, format, args...)
}
