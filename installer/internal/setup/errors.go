package setup

import "fmt"

// Codes of [Error]. They are stable.
const (
	CodeNotRoot       = "setup_not_root"
	CodeMissing       = "setup_prerequisite_missing"
	CodeInstallFailed = "setup_install_failed"
	CodeCache         = "setup_cache_unusable"
	CodeDiskSpace     = "setup_disk_space"
	CodeRecipe        = "setup_recipe_invalid"
	CodeStageFailed   = "setup_stage_failed"
	CodeDownload      = "setup_download_mismatch"
	CodeNotReady      = "setup_not_ready"
	CodeInterrupted   = "setup_interrupted"
)

// Error is a failure of set-up.
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

// Errorf makes an [Error].
func Errorf(code string, cause error, advice, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Advice: advice, Err: cause}
}
