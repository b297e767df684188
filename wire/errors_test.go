package wire

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

// An error is found by its code through any wrapping, and its local cause is
// kept on this side.
func TestErrorsAreFoundByCode(t *testing.T) {
	e := &Error{Code: CodeStorageFull, Message: "the spool is full", Err: io.ErrShortWrite}
	wrapped := fmt.Errorf("write: %w", e)
	if !errors.Is(wrapped, &Error{Code: CodeStorageFull}) || errors.Is(wrapped, &Error{Code: CodeTimeout}) {
		t.Error("errors.Is does not go by the code")
	}
	if !errors.Is(wrapped, io.ErrShortWrite) {
		t.Error("the cause is lost")
	}
	if got := e.Error(); got != "storage_full: the spool is full: short write" {
		t.Error(got)
	}
	for _, test := range []struct {
		err  error
		want Code
	}{{nil, ""}, {wrapped, CodeStorageFull}, {io.EOF, CodeInternal}} {
		if got := CodeOf(test.err); got != test.want {
			t.Errorf("%v is %q", test.err, got)
		}
	}
}

// What the peer learns of an error is all but its cause.
func TestErrorAsMessage(t *testing.T) {
	e := &Error{Code: CodeReplayGap, Message: "gone", Advice: "attach at the oldest", LostBefore: 5, Err: io.EOF}
	m := e.ToMessage(7)
	if m.ID != 7 {
		t.Errorf("id %d", m.ID)
	}
	if got := *m.Err(); got != (Error{Code: e.Code, Message: e.Message, Advice: e.Advice, LostBefore: 5}) {
		t.Errorf("%+v", got)
	}
	if _, err := EncodeExit(Exit{Code: 256, Reason: ReasonExited}); CodeOf(err) != CodeInvalidMessage {
		t.Errorf("an exit code of 256: %v", err)
	}
}
