package session

import (
	"context"
	"os"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// audited reports whether the audit has so many lines with the text.
func (s *system) audited(text string, count int) func() bool {
	return func() bool {
		n := 0
		for line := range strings.Lines(s.log.String()) {
			if strings.Contains(line, "audit: ") && strings.Contains(line, text) {
				n++
			}
		}
		return n == count
	}
}

// R19: what happens to a session without a request is in the audit: its bridge
// dies and is replaced, asks for a signal, is ended for what it does, and the
// session ends for a reason.
func TestAuditOfEvents(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "")
	line := func(id wire.SessionID, operation, rest string) string {
		return "deployment=one operation=" + operation + " session=" + string(id) + " " + rest
	}
	s.killBridges()
	s.eventually("the bridge's death", s.audited(line(info.Session, "bridgeDied", "decision=event code=ok"), 1))
	s.eventually("its successor", s.audited(line(info.Session, "bridgeReplaced", "decision=event code=ok"), 1))
	if _, err := m.Terminate(context.Background(), Of("one"), info.Session, 0); err != nil {
		t.Fatal(err)
	}
	s.eventually("the end", s.audited(line(info.Session, "ended", "decision=event code=terminated"), 1))
	s.delete(m, info.Session)
	signalling := s.create(m, "signalling")
	s.eventually("the bridge's request", s.audited(line(signalling.Session, "bridgeSignal", "decision=allow code=ok"), 1))
	s.delete(m, signalling.Session)
	m.Close()
	// What bears an id and has no record.
	const orphan = "0123456789abcdef0123456789abcdef"
	if err := os.Mkdir(s.l.States()+"/"+orphan, 0o700); err != nil {
		t.Fatal(err)
	}
	m = s.manager()
	defer m.Close()
	if !s.audited("operation=orphanRemoved session="+orphan+" decision=event code=ok", 1)() {
		t.Errorf("the orphan's end is not in the audit")
	}
}

// R19: a bridge that is ended for what it does is in the audit.
func TestAuditOfMisbehaviour(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "garbage")
	s.eventually("it is ended", func() bool {
		return strings.Contains(s.log.String(), "operation=bridgeKilled session="+string(info.Session)+" decision=event code=invalid_message")
	})
	s.delete(m, info.Session)
}
