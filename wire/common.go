package wire

import (
	"strings"
	"unicode/utf8"
)

// Message is one protocol message.
type Message interface {
	// Kind is the value of the message's "type" key.
	Kind() string
	// Validate checks the limits of the fields that the encoding alone does
	// not. Decode and Encode call it; its errors are of type *Error.
	Validate() error
}

// SessionID names a session: 32 lower-case hex digits of a UUIDv7 (RFC 9562).
// All ids have the same length because runsc matches ids by unique prefix.
type SessionID string

// Valid reports whether the id has the form of a session id.
func (id SessionID) Valid() bool { return isHex(string(id), 32) }

// Epoch names one life of a session's spool: 16 lower-case hex digits.
// Sequences are comparable only within one epoch.
type Epoch string

// Valid reports whether the epoch has the right form.
func (e Epoch) Valid() bool { return isHex(string(e), 16) }

func isHex(s string, n int) bool {
	if len(s) != n {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Cursor names a place in a session's output: everything up to and including
// Sequence has been seen. Sequence 0 means nothing has.
type Cursor struct {
	Epoch    Epoch  `cbor:"epoch"`
	Sequence uint64 `cbor:"sequence"`
}

// Protocol names what the hello is for.
type Protocol string

// The two protocols that clients speak.
const (
	ProtocolBroker Protocol = "paseo-sandbox-broker"
	ProtocolBridge Protocol = "paseo-sandbox-bridge"
)

// Hello is the first message in each direction. The client sends the versions
// that it speaks; the server answers with exactly the one that it chose.
type Hello struct {
	Type     string   `cbor:"type"`
	Protocol Protocol `cbor:"protocol"`
	Versions []uint64 `cbor:"versions"`
	// MaxFrame is the largest frame that the sender accepts, in bytes.
	MaxFrame uint64 `cbor:"maxFrame"`
}

// ErrorMessage reports a failure. ID is that of the request, or 0 when no
// request can be named.
type ErrorMessage struct {
	Type       string `cbor:"type"`
	ID         uint64 `cbor:"id"`
	Code       Code   `cbor:"code"`
	Message    string `cbor:"message"`
	Advice     string `cbor:"advice,omitempty"`
	LostBefore uint64 `cbor:"lostBefore,omitempty"`
}

// Done answers a request that has no other answer.
type Done struct {
	Type string `cbor:"type"`
	ID   uint64 `cbor:"id"`
}

// Exit tells how a session's process ended. Exactly one of Code and Signal is
// meaningful: Signal is empty when the process exited by itself.
type Exit struct {
	// Code is the exit code, 0 to 255; 128+n when Signal is set.
	Code int64 `cbor:"code"`
	// Signal is the name without SIG ("KILL"), when a signal ended it.
	Signal string `cbor:"signal,omitempty"`
	// Reason is one of the Reason constants.
	Reason Reason `cbor:"reason"`
	// InputDelivered is how many accepted input bytes reached the process's
	// standard input pipe.
	InputDelivered uint64 `cbor:"inputDelivered"`
	// InputAccepted is how many input bytes were accepted in all.
	InputAccepted uint64 `cbor:"inputAccepted"`
}

// Reason says why a session ended.
type Reason string

// Reasons.
const (
	ReasonExited      Reason = "exited"
	ReasonTerminated  Reason = "terminated"
	ReasonOutOfMemory Reason = "out_of_memory"
	// ReasonHostRestarted: the host went down while the agent ran.
	ReasonHostRestarted Reason = "host_restarted"
	// ReasonTooManyProcesses: the sandbox needed more threads of the host than
	// its limit.
	ReasonTooManyProcesses Reason = "too_many_processes"
	// ReasonAbandoned: it had no writer for longer than its profile allows.
	ReasonAbandoned Reason = "abandoned"
	// ReasonUnknown: the sandbox is gone and its status was not observed.
	ReasonUnknown Reason = "unknown"
)

// Kind implements Message.
func (Hello) Kind() string { return "hello" }

// Kind implements Message.
func (ErrorMessage) Kind() string { return "error" }

// Kind implements Message.
func (Done) Kind() string { return "done" }

// ToMessage returns the error as it travels, as the answer to the request with
// this id, or 0. What could not travel is mended, because an error that can't
// be told would be lost: texts are cut to MaxText and made UTF-8, an empty one
// becomes the code, and a code without the form of one becomes CodeInternal.
func (e *Error) ToMessage(id uint64) ErrorMessage {
	m := ErrorMessage{ID: id, Code: e.Code, Message: mendText(e.Message), Advice: mendText(e.Advice)}
	if !m.Code.Valid() {
		m.Code = CodeInternal
	}
	if m.Message == "" {
		m.Message = string(m.Code)
	}
	if m.Code == CodeReplayGap {
		m.LostBefore = min(e.LostBefore, MaxInteger)
	}
	return m
}

func mendText(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= MaxText {
		return s
	}
	end := MaxText
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// Err returns the message as an error value.
func (m ErrorMessage) Err() *Error {
	return &Error{Code: m.Code, Message: m.Message, Advice: m.Advice, LostBefore: m.LostBefore}
}
