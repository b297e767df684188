package server

import (
	"errors"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit"
	"git.jb.codes/jb/paseo-sandbox/shared/peercred"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// R19: a client that is told to have the operator look at the log is right: the
// cause of each failure stands there, and a plain refusal is no failure.
func TestCauseOfFailureIsLogged(t *testing.T) {
	s := filed(t, "")
	for text, err := range map[string]error{
		"a plain cause":   errors.New("a plain cause"),
		"a wrapped cause": &wire.Error{Code: wire.CodeRuntimeFailed, Message: "no", Err: errors.New("a wrapped cause")},
		"":                &wire.Error{Code: wire.CodeUnknownSession, Message: "no"},
	} {
		before := strings.Count(s.log.String(), "request_failed")
		s.server.audit(peercred.Peer{}, "root", audit.Entry{Operation: "test"}, err)
		log := s.log.String()
		logged := strings.Count(log, "request_failed") > before
		if logged != (text != "") || !strings.Contains(log, text) {
			t.Errorf("%v: logged %t: %s", err, logged, log)
		}
	}
}
