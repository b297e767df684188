package audit

import (
	"slices"
	"strconv"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Decision is what became of a request.
type Decision string

// Decisions.
const (
	Allow Decision = "allow"
	Deny  Decision = "deny"
	// Failed is for what was allowed and went wrong.
	Failed Decision = "failed"
	// Event is for what happened without anybody's request; its peer is the
	// broker itself.
	Event Decision = "event"
)

// Entry is one line of the trail. A text consists of ASCII letters, digits and
// any of "._-()", at most MaxText of them; another text is written as Invalid.
// So no entry can hold what looks like another line or another field, whoever
// made its texts up.
type Entry struct {
	// Time is when it was decided; written in UTC to the nanosecond.
	Time time.Time
	// UID, GID and PID are what the kernel said of the peer; 2^32-1 is nobody.
	UID, GID, PID uint32
	// Deployment is an id, "(admin)" for the operator's socket, or "(broker)".
	Deployment string
	Operation  string
	Session    string
	Decision   Decision
	// Code is "ok", the code of an error, or an event's reason.
	Code string
	// Workspace and Profile are names of the registry, or empty.
	Workspace, Profile string
	// Duration is how long the request took; written in whole microseconds.
	Duration time.Duration
	// Count is how many entries this one stands for, if not for itself.
	Count int
	// Changed says that something was made, ended or removed. Such an entry is
	// never dropped. It is not written.
	Changed bool
}

const (
	// MaxText is the length of the longest text, in bytes: wire.MaxName.
	MaxText = 64
	// MaxLine is the length of the longest line with its newline, in bytes.
	MaxLine = 1024
	// Invalid stands for a text that is not of the right form.
	Invalid = "(invalid)"
	// TimeFormat is that of an entry's time: RFC 3339, UTC, nine decimals.
	TimeFormat = "2006-01-02T15:04:05.000000000Z"
)

// failures are the codes of what was allowed and went wrong.
var failures = []wire.Code{wire.CodeInternal, wire.CodeRuntimeFailed, wire.CodeBridgeFailed, wire.CodeTimeout, wire.CodeBrokerUnreachable}

// Decided returns the entry with the decision and the code that the error
// stands for.
func (e Entry) Decided(err error) Entry {
	code := wire.CodeOf(err)
	switch {
	case err == nil:
		e.Decision, e.Code = Allow, "ok"
	case slices.Contains(failures, code):
		e.Decision, e.Code = Failed, string(code)
	default:
		e.Decision, e.Code = Deny, string(code)
	}
	return e
}

// Append appends the entry as a line: one JSON object (RFC 8259) with its keys
// in a fixed order, without spaces, and a newline. Workspace, profile and
// count are left out when they are empty.
func (e Entry) Append(line []byte) []byte {
	line = append(line, `{"time":"`...)
	line = append(e.Time.UTC().AppendFormat(line, TimeFormat), '"')
	fields := e.fields()
	for i := 0; i < len(fields); i += 2 {
		line = append(append(append(line, `,"`...), fields[i].(string)...), `":`...)
		switch v := fields[i+1].(type) {
		case string: // of the form that needs no escape
			line = append(append(append(line, '"'), v...), '"')
		case int64:
			line = strconv.AppendInt(line, v, 10)
		}
	}
	return append(line, "}\n"...)
}

// fields returns keys and values, except for the time.
func (e Entry) fields() []any {
	f := []any{
		"peer_uid", int64(e.UID), "peer_gid", int64(e.GID), "peer_pid", int64(e.PID), "deployment", text(e.Deployment),
		"operation", text(e.Operation), "session", text(e.Session), "decision", text(string(e.Decision)), "code", text(e.Code),
	}
	if e.Workspace != "" {
		f = append(f, "workspace", text(e.Workspace))
	}
	if e.Profile != "" {
		f = append(f, "profile", text(e.Profile))
	}
	f = append(f, "micros", e.Duration.Microseconds())
	if e.Count != 0 {
		f = append(f, "count", int64(e.Count))
	}
	return f
}

func text(s string) string {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' && c != '(' && c != ')' {
			return Invalid
		}
	}
	if len(s) > MaxText {
		return Invalid
	}
	return s
}
