package server

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/session"
	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// peerInherits makes the test's program speak on a socket that it was given:
// as descriptor 3, or in a packet on descriptor 3.
const peerInherits = "SERVER_TEST_INHERITS"

func playHeir() int {
	fd := 3
	if os.Getenv(peerInherits) == "packet" {
		from, err := fdpass.Adopt(fd)
		if err != nil {
			fmt.Print(err)
			return 1
		}
		_, fds, err := fdpass.Receive(from, 1)
		if err != nil || len(fds) != 1 {
			fmt.Print(err)
			return 1
		}
		fd = fds[0]
	}
	nc, err := net.FileConn(os.NewFile(uintptr(fd), "given"))
	if err != nil {
		fmt.Print(err)
		return 1
	}
	return speak(nc)
}

// R11: a connection is whose it was when it was made, whoever it is given to,
// by inheritance or in a message; the audit says the one who made it.
func TestPassedSockets(t *testing.T) {
	s := newSystem(t)
	for _, way := range []string{"inherited", "packet"} {
		for _, c := range []struct {
			maker, user uint32
			want        string
		}{{1000, 1001, "welcome"}, {1001, 1000, "permission_denied"}, {0, 1000, "permission_denied"}} {
			var nc net.Conn
			as(t, c.maker, func() (err error) {
				nc, err = net.Dial("unix", s.socket("user"))
				return err
			})
			if got := give(t, nc.(*net.UnixConn), way, c.user); got != c.want {
				t.Errorf("%s by %d to %d: got %q", way, c.maker, c.user, got)
			}
			line := fmt.Sprintf("peer_uid=%d", c.maker)
			if !strings.Contains(s.log.String(), line) || c.user == 1001 && strings.Contains(s.log.String(), "peer_uid=1001") && way == "inherited" {
				t.Errorf("the audit does not say %s:\n%s", line, s.log)
			}
		}
	}
}

// give lets another user's process speak on the connection.
func give(t *testing.T, nc *net.UnixConn, way string, uid uint32) string {
	t.Helper()
	f, err := nc.File()
	nc.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	third := f
	if way == "packet" {
		local, remote, err := fdpass.Pair()
		if err != nil {
			t.Fatal(err)
		}
		defer local.Close()
		if err := fdpass.Send(local, []byte{1}, int(f.Fd())); err != nil {
			t.Fatal(err)
		}
		third = os.NewFile(uintptr(remote), "packet")
		defer third.Close()
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{peerInherits + "=" + way, "GORACE=atexit_sleep_ms=0"}
	cmd.ExtraFiles = []*os.File{third}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// R11: a peer in other user and pid namespaces is who it is in ours: root of
// its namespace is a user without privilege, and one without a mapping there
// has one here.
func TestOtherNamespaces(t *testing.T) {
	s := newSystem(t)
	for _, c := range []struct {
		socket  string
		outside int
		inside  int
		want    string
	}{
		{"admin", 1001, 0, "permission_denied"}, {"user", 1001, 0, "permission_denied"}, {"root", 1001, 0, "welcome"},
		{"user", 1000, 0, "welcome"}, {"user", 1001, 1000, "permission_denied"}, {"user", 1000, 65534, "welcome"},
	} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{peerSocket + "=" + s.socket(c.socket), "GORACE=atexit_sleep_ms=0"}
		one := []syscall.SysProcIDMap{{ContainerID: c.inside, HostID: c.outside, Size: 1}}
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID, UidMappings: one, GidMappings: one,
			Credential: &syscall.Credential{Uid: uint32(c.inside), Gid: uint32(c.inside), NoSetGroups: true},
		}
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != c.want {
			t.Errorf("uid %d, there %d, on %s: got %q, %v", c.outside, c.inside, c.socket, out, err)
		}
		if line := fmt.Sprintf("peer_uid=%d peer_gid=%d", c.outside, c.outside); !strings.Contains(lastAudit(s), line) {
			t.Errorf("uid %d, there %d: the audit says %s", c.outside, c.inside, lastAudit(s))
		}
	}
}

func lastAudit(s *system) string {
	log := s.log.String()
	return log[strings.LastIndex(log, "audit:"):]
}

// R12: users who lose access lose their connections at once, the others keep
// theirs; a deployment that is gone refuses everyone until it is back.
func TestUse(t *testing.T) {
	s := newSystem(t)
	var nc net.Conn
	as(t, 1001, func() (err error) {
		nc, err = net.Dial("unix", s.socket("root"))
		return err
	})
	defer nc.Close()
	removed := &peer{t: t, nc: nc.(*net.UnixConn), c: wire.NewConn(nc, wire.MaxBrokerFrame)}
	if m := removed.ask(wire.Hello{Protocol: wire.ProtocolBroker, Versions: []uint64{1}, MaxFrame: wire.MaxBrokerFrame}); m.Kind() != "hello" {
		t.Fatalf("got %+v", m)
	}
	kept, admin := s.hello("root"), s.hello("admin")

	next := *s.config.Deployments["root"]
	next.PeerUIDs = []uint32{0}
	s.use(&next)
	removed.wantEnd()
	if n := strings.Count(s.log.String(), "peer_uid=1001 peer_gid=1001"); n != 2 || !strings.Contains(s.log.String(), `operation=disconnect session="" decision=deny code=permission_denied`) {
		t.Errorf("the audit says:\n%s", s.log)
	}
	if m := kept.ask(wire.Describe{ID: 1}); m.Kind() != "deployment" {
		t.Errorf("got %+v", m)
	}
	s.use(nil)
	kept.wantEnd()
	gone := s.dial("root")
	gone.wantCode(gone.read(), wire.CodePermissionDenied, 0)
	gone.wantEnd()
	admin.wantCode(admin.ask(wire.Describe{ID: 2, Deployment: "root"}), wire.CodeUnknownDeployment, 2)
	s.use(&next)
	s.wantService()
	s.endpoints["root"].Close()
	kept = s.hello("admin")
	if m := kept.ask(wire.ListSessions{ID: 1}); m.Kind() != "sessionList" {
		t.Errorf("got %+v", m)
	}
}

// use replaces the deployment "root", or removes it.
func (s *system) use(d *deployment) {
	c := *s.config
	c.Deployments = map[string]*deployment{"user": s.config.Deployments["user"]}
	if d != nil {
		c.Deployments[d.ID] = d
	}
	s.server.Use(&c)
}

// R12: only the operator reloads; what is wrong is told, logged and audited.
func TestReloadRequest(t *testing.T) {
	s := newSystem(t)
	client, admin := s.hello("root"), s.hello("admin")
	client.wantCode(client.ask(wire.Collect{ID: 1, DryRun: true}), wire.CodeAdminOnly, 1)
	client.wantCode(client.ask(wire.Reload{ID: 1}), wire.CodeAdminOnly, 1)
	if m := admin.ask(wire.Reload{ID: 2}); m.Kind() != "done" {
		t.Errorf("got %+v", m)
	}
	s.setReload(&wire.Error{Code: wire.CodeInvalidConfig, Message: "/etc/x.toml:7: the key y is not known", Advice: "correct the file"})
	m := admin.ask(wire.Reload{ID: 3})
	admin.wantCode(m, wire.CodeInvalidConfig, 3)
	if e, ok := m.(wire.ErrorMessage); !ok || !strings.Contains(e.Message, "x.toml:7") {
		t.Errorf("got %+v", m)
	}
	s.server.ReloadOnSignal()
	log := s.log.String()
	for line, n := range map[string]int{
		`deployment=root operation=reload session="" decision=deny code=admin_only`:           1,
		`deployment="(admin)" operation=reload session="" decision=allow code=ok`:             1,
		`deployment="(admin)" operation=reload session="" decision=deny code=invalid_config`:  1,
		`deployment="(signal)" operation=reload session="" decision=deny code=invalid_config`: 1,
		"reload_failed": 2,
	} {
		if got := strings.Count(log, line); got != n {
			t.Errorf("%d lines with %s in\n%s", got, line, log)
		}
	}
}

// R12: a scope that nobody made serves nobody.
func TestZeroScope(t *testing.T) {
	s := newSystem(t)
	s.serve("nobody", session.Scope{})
	p := s.dial("nobody")
	p.wantCode(p.read(), wire.CodePermissionDenied, 0)
	p.wantEnd()
}
