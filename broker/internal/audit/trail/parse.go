package trail

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit"
)

// line is an entry as JSON.
type line struct {
	Time       string         `json:"time"`
	UID        uint32         `json:"peer_uid"`
	GID        uint32         `json:"peer_gid"`
	PID        uint32         `json:"peer_pid"`
	Deployment string         `json:"deployment"`
	Operation  string         `json:"operation"`
	Session    string         `json:"session"`
	Decision   audit.Decision `json:"decision"`
	Code       string         `json:"code"`
	Workspace  string         `json:"workspace"`
	Profile    string         `json:"profile"`
	Micros     int64          `json:"micros"`
	Count      int            `json:"count"`
}

var (
	errForm     = errors.New("it is not in the form in which entries are written")
	errDecision = errors.New("there is no such decision")
	decisions   = []audit.Decision{audit.Allow, audit.Deny, audit.Failed, audit.Event}
)

// Parse reads one line, with or without its newline. It takes only what
// Entry.Append writes, byte for byte.
func Parse(text []byte) (audit.Entry, error) {
	text = bytes.TrimSuffix(text, []byte{'\n'})
	var l line
	if len(text) >= audit.MaxLine {
		return audit.Entry{}, errForm
	}
	if err := json.Unmarshal(text, &l); err != nil {
		return audit.Entry{}, err
	}
	at, err := time.Parse(audit.TimeFormat, l.Time)
	if err != nil {
		return audit.Entry{}, err
	}
	if !slices.Contains(decisions, l.Decision) {
		return audit.Entry{}, errDecision
	}
	e := audit.Entry{
		Time: at, UID: l.UID, GID: l.GID, PID: l.PID, Deployment: l.Deployment, Operation: l.Operation, Session: l.Session,
		Decision: l.Decision, Code: l.Code, Workspace: l.Workspace, Profile: l.Profile,
		Duration: time.Duration(l.Micros) * time.Microsecond, Count: l.Count,
	}
	if l.Count < 0 || l.Micros < 0 || !bytes.Equal(e.Append(nil), append(slices.Clip(text), '\n')) {
		return audit.Entry{}, errForm
	}
	return e, nil
}
