package inforce

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
)

// R12: deployments come and go, and change their users and workspaces, for
// connections and requests from then on.
func TestReload(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	home := s.dial("home")
	if _, err := home.Create(ctx, client.CreateOptions{Workspace: "other"}); wire.CodeOf(err) != wire.CodePathMissing {
		t.Errorf("got %v", err)
	}
	s.write("deployments/work.toml", deployment("0", "", "tree"))
	s.write("deployments/home.toml", deployment("0, 1001", "", "project"))
	s.reload()
	if d, err := s.dial("work").Describe(ctx, ""); err != nil || d.Deployment != "work" || d.Workspaces[0].Name != "tree" {
		t.Errorf("the new deployment is %+v, %v", d, err)
	}
	// A handle that was removed is as one that never was.
	for _, name := range []string{"other", "never"} {
		if _, err := home.Create(ctx, client.CreateOptions{Workspace: name}); wire.CodeOf(err) != wire.CodeUnknownWorkspace {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if got := socket(t, s.l.BrokerSocket("home", false)); got != "0 660" {
		t.Errorf("the socket is %s", got)
	}
	s.write("deployments/home.toml", deployment("1001", "", "project"))
	s.reload()
	if _, err := home.List(ctx); err == nil {
		t.Error("a user who was removed keeps the connection")
	}
	if got := socket(t, s.l.BrokerSocket("home", false)); got != "1001 600" {
		t.Errorf("the socket is %s", got)
	}
	work := s.dial("work")
	if err := os.Remove(s.l.Etc + "/deployments/work.toml"); err != nil {
		t.Fatal(err)
	}
	s.reload()
	if _, err := work.List(ctx); err == nil {
		t.Error("a deployment that was removed keeps the connection")
	}
	if got := socket(t, s.l.BrokerSocket("work", false)); got != "none" {
		t.Errorf("the socket of the removed deployment is %s", got)
	}
	// Without sessions a deployment may move into a container and back.
	s.write("deployments/home.toml", deployment("0", "container = true", "project"))
	s.reload()
	if a, b := socket(t, s.l.BrokerSocket("home", false)), socket(t, s.l.BrokerSocket("home", true)); a != "none" || b != "0 600" {
		t.Errorf("the sockets are %s and %s", a, b)
	}
}

// A configuration that is not valid, or can't be put in force while the broker
// runs, changes nothing and says where it is wrong.
func TestReloadRefuses(t *testing.T) {
	good := deployment("0, 1000", "", "project", "other")
	for name, c := range map[string]struct {
		file, text string
		code       wire.Code
		says       string
	}{
		"unknown key":    {"deployments/home.toml", "peer_uids = [0]\ncolour = 1\n", wire.CodeInvalidConfig, "home.toml:2: the key colour"},
		"no TOML":        {"deployments/home.toml", "peer_uids = [\n", wire.CodeInvalidConfig, "home.toml:"},
		"one is bad":     {"deployments/b.toml", "peer_uids = []\n", wire.CodeInvalidConfig, "b.toml: peer_uids"},
		"runsc":          {"broker.toml", strings.ReplaceAll(brokerFile(bridge), "/nowhere/runsc", "/elsewhere/runsc"), wire.CodeRestartRequired, "broker.toml: runsc:"},
		"rootfs":         {"broker.toml", strings.ReplaceAll(brokerFile(bridge), "/nowhere/rootfs", "/elsewhere/rootfs"), wire.CodeRestartRequired, "broker.toml: rootfs:"},
		"bridge's path":  {"broker.toml", brokerFile(bridge + "path = \"/x/bridge\"\n"), wire.CodeRestartRequired, "broker.toml: bridge.path:"},
		"audit":          {"broker.toml", brokerFile(bridge + "[audit]\nfile = \"/x/audit\"\n"), wire.CodeRestartRequired, "broker.toml: audit:"},
		"socket is none": {"deployments/blocked.toml", good, wire.CodeInvalidConfig, "is there and is no socket"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t)
			home := s.dial("home")
			blocked := s.l.Deployment("blocked", false)
			if err := errors.Join(os.Mkdir(blocked, 0o711), os.WriteFile(blocked+"/broker.sock", nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			// What would be changed, were it not for the mistake.
			s.write("deployments/new.toml", deployment("0", "", "project"))
			s.write("deployments/home.toml", deployment("0", "", "project"))
			s.write(c.file, c.text)
			err := s.dial("").Reload(t.Context())
			if wire.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %s", err, c.says)
			}
			if log := s.log.String(); !strings.Contains(log, "reload_failed") || !strings.Contains(log, c.says) || !strings.Contains(log, "operation=reload session=\"\" decision=deny code="+string(c.code)) {
				t.Errorf("the log says %s", log)
			}
			if d, err := home.Describe(t.Context(), ""); err != nil || len(d.Workspaces) != 2 {
				t.Errorf("the connection: %+v, %v", d, err)
			}
			if a, b := socket(t, s.l.BrokerSocket("home", false)), socket(t, s.l.BrokerSocket("new", false)); a != "0 660" || b != "none" {
				t.Errorf("the sockets are %s and %s", a, b)
			}
			// And it can be mended.
			os.Remove(blocked + "/broker.sock")
			os.Remove(s.l.Etc + "/deployments/b.toml")
			s.write("broker.toml", brokerFile(bridge))
			s.write("deployments/home.toml", good)
			s.reload()
			if d, err := s.dial("new").Describe(t.Context(), ""); err != nil || d.Deployment != "new" {
				t.Errorf("mended: %+v, %v", d, err)
			}
		})
	}
}

// systemd's sockets stay: one whose deployment is gone refuses everyone until
// it is back, and a new deployment needs a restart.
func TestReloadWithSystemd(t *testing.T) {
	s := newSystem(t)
	s.active.Listen = false
	t.Cleanup(func() { s.active.Listen = true })
	s.write("deployments/work.toml", deployment("0", "", "tree"))
	admin := s.dial("")
	if err := admin.Reload(t.Context()); wire.CodeOf(err) != wire.CodeRestartRequired || !strings.Contains(err.Error(), "deployments/work.toml") {
		t.Errorf("got %v", err)
	}
	s.active.Listen = true
	s.reload()
	s.active.Listen = false
	if err := os.Remove(s.l.Etc + "/deployments/work.toml"); err != nil {
		t.Fatal(err)
	}
	s.reload()
	if _, err := client.DialBroker(t.Context(), s.l.BrokerSocket("work", false)); wire.CodeOf(err) != wire.CodePermissionDenied {
		t.Errorf("got %v", err)
	}
	s.write("deployments/work.toml", deployment("0, 1000", "", "tree"))
	s.reload()
	if d, err := s.dial("work").Describe(t.Context(), ""); err != nil || d.Deployment != "work" {
		t.Errorf("got %+v, %v", d, err)
	}
	if got := socket(t, s.l.BrokerSocket("work", false)); got != "0 660" {
		t.Errorf("the socket is %s", got)
	}
}

// R14: a registry file that is swapped while it is read is read as one or the
// other, and what is not root's is not read at all.
func TestSwappedRegistry(t *testing.T) {
	s := newSystem(t)
	name := s.l.Etc + "/deployments/home.toml"
	stop, done := make(chan struct{}), make(chan struct{})
	one, two := deployment("0", "", "a", "b"), deployment("0", "", "c", "d")+strings.Repeat("# a comment\n", 2000)
	go func() {
		defer close(done)
		os.WriteFile(s.l.Etc+"/foreign", []byte(deployment("0", "", "evil", "worse")), 0o600)
		os.Chown(s.l.Etc+"/foreign", 1000, 1000)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			switch i % 4 {
			case 0:
				os.WriteFile(s.l.Etc+"/x", []byte(one), 0o600)
			case 1:
				os.Symlink(s.l.Etc+"/foreign", s.l.Etc+"/x")
			case 2:
				os.WriteFile(s.l.Etc+"/x", []byte(two), 0o600)
			case 3:
				os.Link(s.l.Etc+"/foreign", s.l.Etc+"/x")
			}
			os.Rename(s.l.Etc+"/x", name)
		}
	}()
	seen := make(map[string]int)
	end := time.Now().Add(2 * time.Minute)
	for i := 0; (i < 100 || seen["a b"] == 0 || seen["c d"] == 0 || seen["refused"] == 0) && time.Now().Before(end); i++ {
		err := s.active.Reload()
		switch {
		case err == nil:
		case wire.CodeOf(err) == wire.CodeInvalidConfig:
			seen["refused"]++
		default:
			t.Fatalf("got %v", err)
		}
		b := s.dial("home")
		d, err := b.Describe(t.Context(), "")
		b.Close()
		if err != nil {
			t.Fatal(err)
		}
		seen[d.Workspaces[0].Name+" "+d.Workspaces[1].Name]++
	}
	close(stop)
	<-done
	delete(seen, "other project")
	if len(seen) != 3 || seen["a b"] == 0 || seen["c d"] == 0 || seen["refused"] == 0 {
		t.Errorf("got %v", seen)
	}
}

// R12: while the configuration changes all the time, each request sees one of
// them wholly, and nothing is left of it all.
func TestReloadStorm(t *testing.T) {
	s := newSystem(t)
	s.write("deployments/home.toml", deployment("0", "", "a0", "b0"))
	s.reload()
	before := countFDs(t)
	stop := make(chan struct{})
	var all sync.WaitGroup
	loop := func(f func(i int)) {
		all.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					f(i)
				}
			}
		})
	}
	ctx := t.Context()
	for range 2 {
		loop(func(int) {
			b, err := client.DialBroker(ctx, s.l.BrokerSocket("home", false))
			if err != nil {
				return
			}
			defer b.Close()
			if d, err := b.Describe(ctx, ""); err == nil && d.Workspaces[0].Name[1:] != d.Workspaces[1].Name[1:] {
				t.Errorf("half of two: %+v", d.Workspaces)
			}
			b.List(ctx)
		})
		loop(func(i int) {
			b, err := client.DialBroker(ctx, s.l.BrokerSocket("home", false))
			if err != nil {
				return
			}
			defer b.Close()
			_, err = b.Create(ctx, client.CreateOptions{Workspace: fmt.Sprintf("a%d", i%2)})
			switch wire.CodeOf(err) {
			case wire.CodeUnknownWorkspace, wire.CodePathMissing, wire.CodePermissionDenied, wire.CodeBrokerUnreachable, wire.CodeTooManySessions:
			default:
				t.Errorf("got %v", err)
			}
		})
	}
	for i := range 40 {
		n := i % 2
		s.write("deployments/home.toml", deployment([]string{"0", "0, 1000"}[n], fmt.Sprintf("max_sessions = %d", n+1), fmt.Sprintf("a%d", n), fmt.Sprintf("b%d", n)))
		if i%3 == 0 {
			s.write("deployments/now-and-then.toml", deployment("0", "", "x"))
		} else {
			os.Remove(s.l.Etc + "/deployments/now-and-then.toml")
		}
		s.reload()
	}
	close(stop)
	all.Wait()
	// The sockets are those of the beginning again.
	if err := os.Remove(s.l.Etc + "/deployments/now-and-then.toml"); err != nil {
		t.Fatal(err)
	}
	s.reload()
	deadline := time.Now().Add(60 * time.Second)
	for countFDs(t) > before {
		if time.Now().After(deadline) {
			links, _ := filepath.Glob("/proc/self/fd/*")
			for i, l := range links {
				links[i], _ = os.Readlink(l)
			}
			t.Fatalf("%d descriptors before, %d after: %q", before, countFDs(t), links)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// What can't be opened leaves nothing open.
func TestOpenFails(t *testing.T) {
	s := newSystem(t)
	before := countFDs(t)
	other := s.l
	other.Run = s.l.Run + "/again"
	if err := os.Mkdir(other.Run, 0o711); err != nil {
		t.Fatal(err)
	}
	config, err := registry.Load(s.l)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Prepare(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Layout: other, Manager: s.active.Manager, Log: hclog.NewNullLogger(), Listen: true}, config); wire.CodeOf(err) != wire.CodeInvalidConfig {
		t.Errorf("got %v", err)
	}
	if c, err := net.Dial("unix", other.AdminSocket()); err == nil {
		c.Close()
		t.Error("the operator's socket is open")
	}
	if after := countFDs(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
