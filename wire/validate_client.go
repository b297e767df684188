package wire

import (
	"slices"
	"strings"
)

// Validate implements Message.
func (m Hello) Validate() error {
	ascending := slices.IsSorted(m.Versions) && len(slices.Compact(slices.Clone(m.Versions))) == len(m.Versions)
	return first(
		check(m.Protocol == ProtocolBroker || m.Protocol == ProtocolBridge, CodeInvalidMessage, "there is no protocol %.40q", m.Protocol),
		checkCount(CodeInvalidMessage, "versions", len(m.Versions), 1, MaxVersions),
		check(ascending && len(m.Versions) > 0 && m.Versions[0] > 0, CodeInvalidMessage, "versions go up from 1"),
		check(m.MaxFrame >= MinPeerFrame, CodeInvalidMessage, "maxFrame is %d, the least is %d", m.MaxFrame, MinPeerFrame),
	)
}

// Validate implements Message.
func (m ErrorMessage) Validate() error {
	return first(
		check(m.Code.Valid(), CodeInvalidMessage, "an error's code is snake_case, at most %d bytes; %.70q is not", MaxName, m.Code),
		checkText(CodeInvalidMessage, "message", m.Message, 1, MaxText),
		checkText(CodeInvalidMessage, "advice", m.Advice, 0, MaxText),
		check(m.LostBefore == 0 || m.Code == CodeReplayGap, CodeInvalidMessage, "lostBefore is for %s only", CodeReplayGap),
	)
}

// Validate implements Message.
func (m Done) Validate() error { return checkID(m.ID) }

// Validate checks the limits of the fields.
func (e Exit) Validate() error {
	return first(
		check(e.Code >= 0 && e.Code <= 255, CodeInvalidMessage, "the exit code is %d; it is 0 to 255", e.Code),
		check(e.Signal == "" || len(e.Signal) <= 16 && matches(e.Signal, "+-") && strings.ToUpper(e.Signal) == e.Signal, CodeInvalidMessage, "%.40q is not the name of a signal", e.Signal),
		check(e.Signal == "" || e.Code > 128, CodeInvalidMessage, "the exit code is %d; with a signal it is above 128", e.Code),
		check(slices.Contains(reasons, e.Reason), CodeInvalidMessage, "there is no reason %.40q", e.Reason),
		check(e.InputDelivered <= e.InputAccepted, CodeInvalidMessage, "more input was delivered than accepted"),
		check(e.InputAccepted <= MaxInteger, CodeInvalidMessage, "inputAccepted is above 2^53-1"),
	)
}

var reasons = []Reason{ReasonExited, ReasonTerminated, ReasonOutOfMemory, ReasonTooManyProcesses, ReasonHostRestarted, ReasonAbandoned, ReasonUnknown}

func checkExit(e *Exit) error {
	if e == nil {
		return nil
	}
	return e.Validate()
}
