package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// Codes of this package's errors, beside those of package artifact,
// wire.CodeRootfsMissing and wire.CodeStorageFull. They are stable.
const (
	CodeArchiveInvalid wire.Code = "rootfs_archive_invalid" // not a tar archive, cut off, or of an unsupported kind
	CodeEscape         wire.Code = "rootfs_escape"          // an entry aims at something outside the tree
	CodeForbidden      wire.Code = "rootfs_forbidden_entry" // an entry that a root file system may not have
	CodeTooLarge       wire.Code = "rootfs_too_large"       // a limit
	CodeSourceChanged  wire.Code = "rootfs_source_changed"  // the folder changed while it was read
	CodeInUse          wire.Code = "rootfs_in_use"          // the registry or a session uses it
	CodeCancelled      wire.Code = "rootfs_cancelled"       // the caller's context ended
	CodeFailed         wire.Code = "rootfs_failed"          // a system call failed
)

var advice = map[wire.Code]string{
	CodeArchiveInvalid:     "give the output of docker export, or another tar archive, plain or compressed with gzip; nothing was imported",
	CodeEscape:             "do not use this archive: no honest tool writes such an entry; nothing was imported",
	CodeForbidden:          "remove the entry from the source; nothing was imported",
	CodeTooLarge:           "import a smaller root file system; nothing was imported",
	CodeSourceChanged:      "import it again while nothing writes to it; nothing was imported",
	CodeInUse:              "leave it, or configure another one, restart the broker and delete the sessions that began before",
	CodeCancelled:          "run it again; nothing was changed",
	CodeFailed:             "look at the cause and run it again; nothing was changed",
	wire.CodeStorageFull:   "make room on the file system of the store; nothing was imported",
	wire.CodeRootfsMissing: "run broker-admin rootfs list",
}

func fail(code wire.Code, cause error, format string, args ...any) error {
	return &wire.Error{Code: code, Message: fmt.Sprintf(format, args...), Advice: advice[code], Err: cause}
}

// ioFail names the cause of a failed system call, if it has a name. It lets an
// error through that has a code already.
func ioFail(cause error, format string, args ...any) error {
	var coded *wire.Error
	var a *artifact.Error
	switch {
	case errors.As(cause, &coded):
		return cause
	case errors.As(cause, &a):
		return &wire.Error{Code: wire.Code(a.Code), Message: a.Message, Advice: a.Advice, Err: a.Err}
	case errors.Is(cause, context.Canceled), errors.Is(cause, context.DeadlineExceeded):
		return fail(CodeCancelled, nil, "it was interrupted")
	case errors.Is(cause, unix.ENOSPC), errors.Is(cause, unix.EDQUOT):
		return fail(wire.CodeStorageFull, cause, format, args...)
	case errors.Is(cause, fs.ErrPermission):
		return &wire.Error{Code: wire.CodeRootRequired, Message: fmt.Sprintf(format, args...), Advice: "run it as root", Err: cause}
	}
	return fail(CodeFailed, cause, format, args...)
}
