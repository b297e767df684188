package registry

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"
)

// A file with another name elsewhere is the same file: its owner and mode say
// who can write it by any name.
func TestHardLink(t *testing.T) {
	l := newEtc(t)
	if err := os.Link(l.Etc+"/deployments/local.toml", l.Etc+"/copy"); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(l); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(l.Etc+"/copy", 0o620); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(l); wire.CodeOf(err) != wire.CodeInvalidConfig {
		t.Errorf("writable by its other name: %v", err)
	}
}

// A prefix in a sticky folder such as /tmp is root's as long as the folder in
// it is; what others put beside it changes nothing.
func TestStickyParent(t *testing.T) {
	l := newEtc(t)
	if _, err := Load(l); err != nil {
		t.Error(err)
	}
	if err := os.Chown(l.Etc, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(l); wire.CodeOf(err) != wire.CodeInvalidConfig {
		t.Errorf("got %v", err)
	}
}

// R12: whatever is renamed over a registry file while it is read, the result
// is one of the whole contents that root wrote, or a typed refusal.
func TestSwappedFile(t *testing.T) {
	l := newEtc(t)
	file, spare := l.Etc+"/deployments/local.toml", l.Etc+"/spare"
	if err := os.Mkdir(spare, 0o700); err != nil {
		t.Fatal(err)
	}
	hostile := replaced(t, deploymentTOML, "[1000]", "[6666]")
	padding := strings.Repeat("# padding\n", 5000)
	write(t, spare+"/0", replaced(t, deploymentTOML, "[1000]", "[2]")+padding+"[workspaces.second]\nroot = \"/srv/2\"\nuid = 2\ngid = 2\n")
	write(t, spare+"/1", hostile)
	write(t, spare+"/2", hostile)
	for _, err := range []error{
		os.Chown(spare+"/1", 1000, 1000), os.Chmod(spare+"/2", 0o666), os.Symlink(spare+"/hostile", spare+"/3"),
		unix.Mkfifo(spare+"/4", 0o600), os.Mkdir(spare+"/5", 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	write(t, spare+"/hostile", hostile)
	stop := make(chan struct{})
	var racer sync.WaitGroup
	racer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			with := spare + "/" + string("01203405"[i%8])
			for range 2 {
				if err := unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, with, unix.RENAME_EXCHANGE); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	seen := map[string]int{}
	enough := func() bool { return seen["first"] > 20 && seen["second"] > 20 && seen["refused"] > 20 }
	for deadline := time.Now().Add(time.Minute); !enough() && time.Now().Before(deadline); {
		seen[loaded(t, l)]++
	}
	close(stop)
	racer.Wait()
	if !enough() {
		t.Errorf("the race did not happen: %v", seen)
	}
	t.Log(seen)
}

func loaded(t *testing.T, l layout.Layout) string {
	t.Helper()
	c, err := Load(l)
	if err != nil {
		if wire.CodeOf(err) != wire.CodeInvalidConfig {
			t.Fatalf("an untyped refusal: %v", err)
		}
		return "refused"
	}
	switch d := c.Deployments["local"]; {
	case d.PeerUIDs[0] == 1000 && len(d.Workspaces) == 1:
		return "first"
	case d.PeerUIDs[0] == 2 && len(d.Workspaces) == 2:
		return "second"
	default:
		t.Fatalf("a mixture, or what root did not write: %+v", d)
		return ""
	}
}

// FuzzDeployment: whatever a deployment's file says, it is refused or it is
// within the rules.
func FuzzDeployment(f *testing.F) {
	f.Add(deploymentTOML)
	f.Add("peer_uids = [0]\n[workspaces]\nx = 1\n[credentials.k]\n")
	f.Add(strings.Replace(deploymentTOML, "/srv/project", "/var/lib/paseo-sandbox/state", 1))
	f.Add(strings.Replace(deploymentTOML, "gid = 1000", "gid = 1000\nclient_path = \"/w\"\nsubfolders = true\n[workspaces.b]\nroot = \"/proc\"", 1))
	f.Add("[credentials.k]\nfile = \"/etc/k\"\nas = \"auth.json\"\n" + deploymentTOML)
	f.Fuzz(func(t *testing.T, text string) {
		d := &Deployment{ID: "local"}
		c := &Config{Bridge: Bridge{FirstUID: 2000000, UIDCount: 100}, Deployments: map[string]*Deployment{"local": d}}
		c.Runsc.Path, c.Rootfs.Path = "/opt/runsc", "/opt/rootfs"
		if toml.NewDecoder(strings.NewReader(text)).DisallowUnknownFields().Decode(d) != nil || d.complete(c.Bridge) != nil || c.checkRoots(layout.Default) != nil {
			return
		}
		for name, w := range d.Workspaces {
			for _, path := range []string{layout.Default.Etc, layout.Default.Run, layout.Default.Var, "/proc", "/dev", "/sys", "/opt/runsc", "/opt/rootfs"} {
				if strings.HasPrefix(w.Root+"/", path+"/") || strings.HasPrefix(path+"/", w.Root+"/") {
					t.Fatalf("%q overlaps %q", w.Root, path)
				}
			}
			if w.UID == 0 || w.GID == 0 || c.Bridge.Holds(w.UID) || !strings.HasPrefix(w.Root, "/") || strings.Contains(w.Root+"/", "/../") {
				t.Fatalf("%q is %+v", name, w)
			}
			for _, key := range d.Credentials {
				if strings.HasPrefix(key.File, w.Root+"/") {
					t.Fatalf("%q holds %q", w.Root, key.File)
				}
			}
		}
	})
}
