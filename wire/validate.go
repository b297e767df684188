package wire

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// ValidName reports whether s has the form of a name of the registry:
// [A-Za-z0-9][A-Za-z0-9._-]{0,63}.
func ValidName(s string) bool { return len(s) <= MaxName && matches(s, "._-") }

// ValidDeployment reports whether s has the form of a deployment's id: a name
// of at most MaxDeployment bytes.
func ValidDeployment(s string) bool { return len(s) <= MaxDeployment && ValidName(s) }

// ValidModel reports whether s has the form PROVIDER/MODEL, each beginning with
// a letter or a digit, so that neither reads as an option where it becomes an
// argument; at most MaxModel bytes.
func ValidModel(s string) bool {
	provider, model, _ := strings.Cut(s, "/")
	return len(s) <= MaxModel && matches(provider, "._-") && matches(model, "._-/:@+")
}

// ValidThinking reports whether s is one of Pi's thinking levels.
func ValidThinking(s string) bool { return slices.Contains(thinkingLevels, s) }

var thinkingLevels = []string{"off", "minimal", "low", "medium", "high", "xhigh", "max"}

// ValidSignal reports whether s names a signal that a client may send.
func ValidSignal(s string) bool { return slices.Contains(signals, s) }

var signals = []string{"INT", "TERM", "HUP", "KILL", "USR1", "USR2"}

// matches reports whether s begins with an ASCII letter or digit and goes on
// with those and the given punctuation.
func matches(s, punctuation string) bool {
	for i := range len(s) {
		c := s[i]
		if c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' {
			continue
		}
		if i == 0 || !containsByte(punctuation, c) {
			return false
		}
	}
	return s != ""
}

func containsByte(s string, c byte) bool {
	for i := range len(s) {
		if s[i] == c {
			return true
		}
	}
	return false
}

// first returns the first error.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// check returns an error unless ok.
func check(ok bool, code Code, format string, args ...any) error {
	if ok {
		return nil
	}
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Advice: "see the limits of the message in the grammar"}
}

func checkID(id uint64) error {
	return check(id >= 1 && id <= MaxInteger, CodeInvalidMessage, "the id is %d; ids go from 1 to 2^53-1", id)
}

func checkSession(id SessionID) error {
	return check(id.Valid(), CodeInvalidArgument, "a session id is 32 lower-case hex digits, %.40q is not", id)
}

func checkEpoch(e Epoch, code Code) error {
	return check(e.Valid(), code, "an epoch is 16 lower-case hex digits, %.40q is not", e)
}

func checkCursor(c Cursor) error {
	return first(
		checkEpoch(c.Epoch, CodeInvalidCursor),
		check(c.Sequence <= MaxInteger, CodeInvalidCursor, "the cursor's sequence is above 2^53-1"),
	)
}

func checkText(code Code, field, s string, least, most int) error {
	return first(
		check(len(s) >= least && len(s) <= most, code, "%s is %d bytes long; it has %d to %d", field, len(s), least, most),
		check(utf8.ValidString(s), code, "%s is not UTF-8", field),
	)
}

func checkLease(lease string) error {
	return checkText(CodeInvalidMessage, "lease", lease, 0, MaxLease)
}

func checkName(field, s string) error {
	return check(ValidName(s), CodeInvalidArgument, "%s %.70q is not a name: letters, digits, '.', '_' and '-', at most %d, the first a letter or a digit", field, s, MaxName)
}

func checkOptionalName(field, s string) error {
	if s == "" {
		return nil
	}
	return checkName(field, s)
}

func checkDeployment(s string) error {
	return check(ValidDeployment(s), CodeInvalidArgument, "%.40q is not a deployment id", s)
}

func checkSignal(s string) error {
	return check(ValidSignal(s), CodeInvalidSignal, "there is no signal %.20q here; there are %v", s, signals)
}

func checkGrace(millis uint64) error {
	return check(millis <= MaxGraceMillis, CodeInvalidArgument, "the grace is %d ms, the limit is %d", millis, MaxGraceMillis)
}

func checkCount(code Code, field string, n, least, most int) error {
	return check(n >= least && n <= most, code, "%s has %d elements; it has %d to %d", field, n, least, most)
}

func checkUIDs(field string, uids []uint64) error {
	for _, uid := range uids {
		if err := check(uid <= MaxUID, CodeInvalidMessage, "%s: %d is not a user's id", field, uid); err != nil {
			return err
		}
	}
	return checkCount(CodeInvalidMessage, field, len(uids), 0, MaxPeerUIDs)
}

// checkEach returns the first error of check over the elements.
func checkEach[T any](elements []T, check func(*T) error) error {
	for i := range elements {
		if err := check(&elements[i]); err != nil {
			return err
		}
	}
	return nil
}

// checkUnique refuses an element that comes twice.
func checkUnique[T comparable](code Code, field string, elements []T) error {
	for i, e := range elements {
		if slices.Contains(elements[:i], e) {
			return check(false, code, "%s has %v twice", field, e)
		}
	}
	return nil
}
