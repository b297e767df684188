package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Codes of failures that this side finds. Those that a peer tells have the
// codes of package wire.
const (
	// CodeSessionUnreachable: nobody answers on a session's socket.
	CodeSessionUnreachable wire.Code = "session_unreachable"
	// CodeConnectionLost: the peer ended the connection, or it broke.
	CodeConnectionLost wire.Code = "connection_lost"
	// CodeConnectionClosed: this side closed the connection.
	CodeConnectionClosed wire.Code = "connection_closed"
	// CodeProtocolViolation: the peer sent what the protocol does not allow,
	// such as a gap in the sequences. Nothing after it can be trusted.
	CodeProtocolViolation wire.Code = "protocol_violation"
	// CodeRecordTooLarge: a record is longer than SessionConfig.MaxRecord.
	CodeRecordTooLarge wire.Code = "record_too_large"
	// CodeCancelled: the context of a call was cancelled.
	CodeCancelled wire.Code = "cancelled"
	// CodeConcurrentRead: two goroutines read records at the same time.
	CodeConcurrentRead wire.Code = "concurrent_read"
	// CodeLeaseExpired: this program was silent for longer than its lease, as
	// one that was stopped, and has lost the writer's seat. Nobody may have
	// taken it.
	CodeLeaseExpired wire.Code = "lease_expired"
	// CodeInvalidCursorFile: a cursor file does not hold a cursor.
	CodeInvalidCursorFile wire.Code = "invalid_cursor_file"
)

// ErrFenced is what a writer's Session.Next returns once a newer writer took
// its place. errors.Is matches it with every error of CodeStaleWriter.
var ErrFenced = &wire.Error{
	Code:    wire.CodeStaleWriter,
	Message: "a newer writer took over this session",
	Advice:  "stop; attach with takeover only if this program is the one that should write",
}

// ErrLeaseExpired is what a writer's Session.Next returns once its lease has
// run out.
var ErrLeaseExpired = &wire.Error{
	Code:    CodeLeaseExpired,
	Message: "this program was silent for too long and is no longer the session's writer",
	Advice:  "attach again at the last durable cursor, without takeover; another program may be the writer now",
}

var errClosed = &wire.Error{
	Code:    CodeConnectionClosed,
	Message: "the connection was closed on this side",
	Advice:  "make no call after Close",
}

const violationAdvice = "reconnect and attach at the last durable cursor; report it if it happens again"

func violation(peer, format string, args ...any) *wire.Error {
	return &wire.Error{
		Code:    CodeProtocolViolation,
		Message: fmt.Sprintf("the %s broke the protocol: ", peer) + fmt.Sprintf(format, args...),
		Advice:  violationAdvice,
	}
}

// lost describes the end of a connection that nobody on this side asked for.
func lost(peer string, cause error) error {
	switch {
	case errors.Is(cause, io.EOF):
		cause = nil
	case wire.CodeOf(cause) != wire.CodeInternal && wire.CodeOf(cause) != wire.CodeFrameTruncated:
		return &wire.Error{Code: CodeProtocolViolation, Message: fmt.Sprintf("the %s sent what can't be read", peer), Advice: violationAdvice, Err: cause}
	}
	return &wire.Error{
		Code:    CodeConnectionLost,
		Message: fmt.Sprintf("the %s ended the connection", peer),
		Advice:  "connect again; a session goes on from the last durable cursor, and an input may be sent again under its id",
		Err:     cause,
	}
}

// expired describes a wait that its context ended.
func expired(ctx context.Context, what string) *wire.Error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return &wire.Error{
			Code:    wire.CodeTimeout,
			Message: what + " took too long",
			Advice:  "try again; the request may have had its effect",
			Err:     cause,
		}
	}
	return &wire.Error{Code: CodeCancelled, Message: what + " was cancelled; it may have had its effect", Err: cause}
}
