package session

import (
	"context"
	"os"
	"strconv"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// R15, R3: what is made has its owners and modes, and the bridge its own user.
func TestOwners(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	d := s.config.Deployments["one"]
	info, err := m.Create(context.Background(), d, wire.Create{
		ID: 1, Workspace: "project", Profile: "pi",
		Attachments: []wire.Attachment{
			{Kind: wire.AttachmentExtension, Name: "a.ts", Data: []byte("text")},
			{Kind: wire.AttachmentMCPConfig, Name: "A.ts", Data: []byte("{}")},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.delete(m, info.Session)
	p := s.l.Session("one", false, info.Session)
	bridge := s.config.Bridge.FirstUID
	for path, want := range map[string]struct {
		uid  uint32
		mode os.FileMode
	}{
		p.Pin: {1000, os.ModeDir | 0o755}, p.State: {1000, os.ModeDir | 0o700}, p.State + "/tmp": {1000, os.ModeDir | 0o700},
		p.Bundle: {0, os.ModeDir | 0o700}, p.Bundle + "/config.json": {0, 0o600}, p.Attachments + "/a.ts": {0, 0o444},
		p.Attachments: {0, os.ModeDir | 0o755}, p.Attachments + "/A.ts": {0, 0o444},
		p.Spool: {0, os.ModeDir | 0o700}, p.Spool + "/stdout": {bridge, 0o600}, p.Spool + "/control.log": {bridge, 0o600},
		p.Socket: {1000, os.ModeSocket | 0o600}, s.l.Records() + "/" + string(info.Session) + ".json": {0, 0o600},
	} {
		st, err := os.Lstat(path)
		if err != nil {
			t.Error(err)
		} else if st.Mode() != want.mode || uidOf(st) != want.uid {
			t.Errorf("%s is %v of %d, want %v of %d", path, st.Mode(), uidOf(st), want.mode, want.uid)
		}
	}
	st, err := os.Stat("/proc/" + strconv.Itoa(int(info.BridgePID)))
	if err != nil || uidOf(st) != bridge {
		t.Errorf("the bridge runs as %d, want %d", uidOf(st), bridge)
	}
}
