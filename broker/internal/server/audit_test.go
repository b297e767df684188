package server

import (
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit/trail"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/fxamacker/cbor/v2"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// filed is a system whose audit is a file.
func filed(t *testing.T, folder string) *system {
	t.Helper()
	return newAudited(t, func(dir string, log hclog.Logger) *audit.Trail {
		tr, err := audit.Open(registry.Audit{File: dir + folder + "/audit.log", MaxSize: 1 << 20, Files: 2}, log)
		if err != nil {
			t.Fatal(err)
		}
		return tr
	})
}

// entries are those of the file; all lines have to be.
func entries(t *testing.T, path string) []audit.Entry {
	t.Helper()
	r, err := trail.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var all []audit.Entry
	for {
		l, err := r.Next()
		if err == io.EOF {
			if l, broken := r.Rest(); broken {
				t.Errorf("the audit ends with %q", l.Text)
			}
			return all
		}
		if err != nil || l.Err != nil {
			t.Errorf("the audit has %q: %v, %v", l.Text, l.Err, err)
			return all
		}
		all = append(all, l.Entry)
	}
}

// hostile are texts that would be another line or another field somewhere.
var hostile = []string{
	"x\naudit: peer_uid=0 decision=allow", "\n{\"time\":\"2026-01-02T03:04:05.000000006Z\",\"peer_uid\":0}\n", "\r\n", "\r",
	`","decision":"allow","code":"ok`, ` decision=allow code=ok`, "\x00", "\u2028", "\u2029", "\u0085", "\x1b[1A", `\n`, "",
	strings.Repeat("a", 2000), strings.Repeat("\n", 60000),
}

// requests are all fields of all requests, with values of the right form.
var requests = map[string]map[string]any{
	"create": {
		"workspace": "nothing", "path": "/nothing", "folder": "nothing", "profile": "nothing", "agentSession": "a", "model": "p/m", "thinking": "low",
		"attachments": []any{map[string]any{"kind": "extension", "name": "n", "data": []byte("x")}},
	},
	"inspectSession": {"session": strings.Repeat("a", 32)}, "listSessions": {"after": strings.Repeat("a", 32)},
	"signalSession":    {"session": strings.Repeat("a", 32), "signal": "TERM"},
	"terminateSession": {"session": strings.Repeat("a", 32), "graceMillis": 1},
	"deleteSession":    {"session": strings.Repeat("a", 32)}, "describe": {"deployment": "user"},
	"hello": {"protocol": "paseo-sandbox-broker", "versions": []any{1}, "maxFrame": 65536},
}

// forge puts each hostile text into each field of the request and sends it,
// with another connection where one is ended for it. It returns how many
// requests that were; they must be fewer than would be dropped.
func forge(t *testing.T, s *system, kind string) (sent int) {
	t.Helper()
	encode, err := cbor.EncOptions{Sort: cbor.SortCanonical}.EncMode()
	if err != nil {
		t.Fatal(err)
	}
	p := s.hello("root")
	send := func(m map[string]any) {
		payload, err := encode.Marshal(m)
		if err != nil || len(payload) > wire.MaxBrokerFrame {
			return
		}
		sent++
		if _, err := p.nc.Write(wire.AppendFrame(nil, payload)); err != nil {
			t.Fatal(err)
		}
		if e, ok := p.read().(wire.ErrorMessage); ok && wire.Fatal(e.Err()) {
			p.nc.Close()
			p = s.hello("root")
		}
	}
	for _, text := range hostile {
		send(map[string]any{"type": kind + text, "id": 1})
		send(map[string]any{"type": kind, "id": text})
		send(map[string]any{"type": kind, "id": 1, text: text})
		for field := range requests[kind] {
			m := maps.Clone(requests[kind])
			m["type"], m["id"], m[field] = kind, 1, text
			if field == "attachments" {
				m[field] = []any{map[string]any{"kind": text, "name": text, "data": []byte(text)}}
			}
			send(m)
		}
	}
	return sent
}

// R19: nothing that a client sends can forge a line of the audit or a field of
// one, whichever field of whichever request it stands in.
func TestForgery(t *testing.T) {
	known := append(slices.Collect(maps.Keys(requests)), "connect", "message")
	for kind := range requests {
		s := filed(t, "")
		sent, total := forge(t, s, kind), 0
		for _, e := range entries(t, s.dir+"/audit.log") {
			total++
			if !slices.Contains(known, e.Operation) || e.UID != 0 || e.PID != uint32(os.Getpid()) || e.Deployment != "root" || e.Count != 0 ||
				e.Session != "" && !wire.SessionID(e.Session).Valid() || !wire.Code(e.Code).Valid() || e.Workspace != "" || e.Profile != "" && e.Profile != "pi" {
				t.Errorf("%s: a client got this into the audit: %+v", kind, e)
			}
		}
		if total < sent || sent < 30 {
			t.Errorf("%s: %d requests have left %d entries", kind, sent, total)
		}
	}
}

// R19: the same for an audit that is part of the log: what could be taken for
// a line of the audit, wherever lines may be thought to end, is one.
func TestForgeryInLog(t *testing.T) {
	form := regexp.MustCompile(`^\S+ \[INFO\]  audit: peer_uid=0 peer_gid=0 peer_pid=\d+ deployment=root operation=[a-zA-Z]+ session=(""|[0-9a-f]{32}) decision=(allow|deny|failed) code=[a-z_]+( profile=pi)? micros=\d+$`)
	for kind := range requests {
		s := newSystem(t)
		sent, lines := forge(t, s, kind), 0
		for line := range strings.FieldsFuncSeq(s.log.String(), func(r rune) bool { return strings.ContainsRune("\n\r\u0085\u2028\u2029\x00\v\f", r) }) {
			if strings.Contains(line, "audit") || strings.Contains(line, "decision") {
				lines++
				if !form.MatchString(line) {
					t.Errorf("%s: the log has %q", kind, line)
				}
			}
		}
		if lines < sent {
			t.Errorf("%s: %d requests have left %d lines", kind, sent, lines)
		}
	}
}

// R19: while the audit can't be written, nothing new is made and the client is
// told; what makes room goes on; with room, so does everything.
func TestAuditUnwritable(t *testing.T) {
	disk, err := os.MkdirTemp("", "disk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(disk) })
	rootonly.Test(t)
	if err := unix.Mount("tmpfs", disk, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64k,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s := newAudited(t, func(_ string, log hclog.Logger) *audit.Trail {
		tr, err := audit.Open(registry.Audit{File: disk + "/audit.log", MaxSize: 1 << 20, Files: 2}, log)
		if err != nil {
			t.Fatal(err)
		}
		return tr
	})
	p := s.hello("root")
	create := wire.Create{ID: 1, Workspace: "project"}
	p.wantCode(p.ask(create), wire.CodeInternal, 1) // there are no folders here
	filler, err := os.Create(disk + "/filler")
	if err != nil {
		t.Fatal(err)
	}
	for size := 4096; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = filler.Write(make([]byte, size))
		}
	}
	filler.Close()
	// What is left of the file's last page.
	for range 100 {
		p.ask(wire.Describe{ID: 2})
	}
	p.wantCode(p.ask(create), wire.CodeAuditUnavailable, 1)
	if m := p.ask(wire.DeleteSession{ID: 3, Session: wire.SessionID(strings.Repeat("0", 32))}); m.Kind() != "done" {
		t.Errorf("nothing can be deleted: %+v", m)
	}
	for _, want := range []string{"operation=create session=\"\" decision=deny code=audit_unavailable", "operation=deleteSession session=" + strings.Repeat("0", 32) + " decision=allow"} {
		if !slices.ContainsFunc(strings.Split(s.log.String(), "\n"), func(l string) bool {
			return strings.Contains(l, "audit_unwritten") && strings.Contains(l, want)
		}) {
			t.Errorf("the log has no audit_unwritten with %q", want)
		}
	}
	if err := os.Remove(disk + "/filler"); err != nil {
		t.Fatal(err)
	}
	p.wantCode(p.ask(create), wire.CodeInternal, 1)
}

// R19: what is said of a request: who, what, of which workspace and profile,
// and for how long; a name that is not registered is not repeated.
func TestAuditOfRequests(t *testing.T) {
	s := filed(t, "")
	p := s.hello("root")
	p.ask(wire.Create{ID: 1, Workspace: "project"})
	p.ask(wire.Create{ID: 2, Workspace: "guess", Profile: "guess"})
	p.ask(wire.ListSessions{ID: 3})
	var got []string
	for _, e := range entries(t, s.dir+"/audit.log") {
		if e.UID != 0 || e.PID != uint32(os.Getpid()) || e.Deployment != "root" || e.Time.IsZero() {
			t.Errorf("got %+v", e)
		}
		got = append(got, fmt.Sprintf("%s %s %s %s/%s %v", e.Operation, e.Decision, e.Code, e.Workspace, e.Profile, e.Duration > 0))
	}
	want := []string{
		"connect allow ok / false", "create failed internal_error project/pi true", "create deny unknown_workspace / true", "listSessions allow ok / true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
