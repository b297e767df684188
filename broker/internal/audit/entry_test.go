package audit

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

var sample = Entry{
	Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600)), UID: 1000, GID: 100, PID: 4242, Deployment: "home",
	Operation: "create", Session: strings.Repeat("0f", 16), Decision: Allow, Code: "ok",
	Workspace: "project-a", Profile: "pi", Duration: 1234567 * time.Nanosecond,
}

// R19: the form of a line. Others read it: it does not change by accident.
func TestAppend(t *testing.T) {
	for want, e := range map[string]Entry{
		`{"time":"2026-01-02T02:04:05.000000006Z","peer_uid":1000,"peer_gid":100,"peer_pid":4242,"deployment":"home","operation":"create","session":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f","decision":"allow","code":"ok","workspace":"project-a","profile":"pi","micros":1234}`: sample,
		`{"time":"2026-01-02T02:04:05.000000006Z","peer_uid":4294967295,"peer_gid":4294967295,"peer_pid":0,"deployment":"(admin)","operation":"connect","session":"","decision":"deny","code":"permission_denied","micros":0,"count":7}`: {
			Time: sample.Time, UID: nobody, GID: nobody, Deployment: "(admin)", Operation: "connect", Decision: Deny, Code: "permission_denied", Count: 7,
		},
	} {
		if got := string(e.Append(nil)); got != want+"\n" {
			t.Errorf("got  %swant %s", got, want)
		}
	}
}

// R19: whatever a text holds, an entry stays one line of the same form.
func TestHostileTexts(t *testing.T) {
	long := strings.Repeat("a", MaxText)
	full := sample
	full.Deployment, full.Operation, full.Session, full.Code, full.Workspace, full.Profile = long, long, long, long, long, long
	if n := len(full.Append(nil)); n > MaxLine {
		t.Errorf("a full line has %d bytes, the limit is %d", n, MaxLine)
	}
	for _, hostile := range []string{
		"a\nb", "\n", "\r", `a"b`, `a","decision":"allow`, "\x00", "\u2028", "\u2029", "\u0085", "é", "\xff", `\`, `\u000a`,
		"a b", "<", "\x1b[2K", "\x7f", "{", long + "a", strings.Repeat("\n", 1<<20),
	} {
		for name, set := range map[string]func(*Entry){
			"deployment": func(e *Entry) { e.Deployment = hostile }, "operation": func(e *Entry) { e.Operation = hostile },
			"session": func(e *Entry) { e.Session = hostile }, "decision": func(e *Entry) { e.Decision = Decision(hostile) },
			"code": func(e *Entry) { e.Code = hostile }, "workspace": func(e *Entry) { e.Workspace = hostile },
			"profile": func(e *Entry) { e.Profile = hostile },
		} {
			e := sample
			set(&e)
			line := e.Append(nil)
			if len(line) > MaxLine || bytes.IndexByte(line, '\n') != len(line)-1 || !bytes.Contains(line, []byte(`"`+name+`":"(invalid)"`)) || bytes.Count(line, []byte(`"`)) != bytes.Count(sample.Append(nil), []byte(`"`)) {
				t.Errorf("%s %.20q: got %q", name, hostile, line)
			}
		}
	}
}
