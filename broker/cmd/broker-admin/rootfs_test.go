package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"golang.org/x/sys/unix"
)

// childVariable makes this test's program broker-admin.
const childVariable = "BROKER_ADMIN_CHILD"

func init() {
	if os.Getenv(childVariable) != "" {
		main()
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newRootfsPrefix is a prefix without configuration, and a folder to import.
func newRootfsPrefix(t *testing.T) (prefix, source string) {
	t.Helper()
	rootonly.Test(t)
	prefix, source = t.TempDir(), filepath.Join(t.TempDir(), "source")
	must(t, errors.Join(os.Mkdir(source, 0o755), os.WriteFile(source+"/a", []byte("x"), 0o644)))
	return prefix, source
}

// admin runs a command that must end with the exit status, and decodes its
// JSON into v, unless that is nil.
func admin(t *testing.T, exit int, v any, args ...string) (stderr string) {
	t.Helper()
	var stdout, errors bytes.Buffer
	if got := run(append(args, "--json"), &stdout, &errors); got != exit {
		t.Fatalf("%v: exit %d, want %d: %s", args, got, exit, &errors)
	}
	if v != nil {
		reflect.ValueOf(v).Elem().SetZero()
		if err := json.Unmarshal(stdout.Bytes(), v); err != nil {
			t.Fatalf("%v: %v in %s", args, err, &stdout)
		}
	}
	return errors.String()
}

// R16 R80: a root file system's way through the commands: imported, listed,
// verified, damaged, kept while the configuration names it, removed.
func TestRootfsCommands(t *testing.T) {
	prefix, source := newRootfsPrefix(t)
	in := []string{"--prefix", prefix, "rootfs"}
	rootfs := func(exit int, v any, args ...string) string {
		t.Helper()
		return admin(t, exit, v, append(in, args...)...)
	}
	var first, again struct {
		Digest         string
		AlreadyPresent bool
		Made           []string
		Changes        []struct{ Class, Did, First string }
	}
	rootfs(0, &first, "import", source)
	if !strings.HasPrefix(first.Digest, "sha256:") || first.AlreadyPresent || len(first.Made) == 0 || first.Changes == nil {
		t.Errorf("got %+v", first)
	}
	rootfs(0, &again, "import", source, "--digest", first.Digest)
	if again.Digest != first.Digest || !again.AlreadyPresent {
		t.Errorf("got %+v", again)
	}
	must(t, unix.Chmod(source+"/a", 0o4755))
	if stderr := rootfs(exitFailed, nil, "import", source); !strings.HasPrefix(stderr, "rootfs_forbidden_entry: ") || !strings.Contains(stderr, "--normalize") {
		t.Errorf("a setuid program: %s", stderr)
	}
	rootfs(0, &again, "import", source, "--normalize")
	if len(again.Changes) != 1 || again.Changes[0].Class != "setuid" || again.Changes[0].First != "a" {
		t.Errorf("normalized: %+v", again.Changes)
	}
	var list []rootfsRow
	rootfs(0, &list, "list")
	if len(list) != 2 || list[0].Digest != first.Digest || !list[0].OK || list[0].Configured {
		t.Errorf("the list is %+v", list)
	}
	rootfs(0, &list, "verify")
	must(t, os.WriteFile(prefix+"/var/rootfs/"+first.Digest[7:]+"/tree/a", []byte("y"), 0o644))
	rootfs(exitFailed, &list, "verify")
	if len(list) != 2 || list[0].OK || !strings.Contains(list[0].Problem, "artifact_digest_mismatch") || !list[1].OK {
		t.Errorf("verified: %+v", list)
	}
	rootfs(exitFailed, &list, "verify", first.Digest[:20])
	if len(list) != 1 {
		t.Errorf("verified one: %+v", list)
	}
	configure(t, prefix, first.Digest)
	rootfs(0, &list, "list")
	if !list[0].Configured || list[1].Configured {
		t.Errorf("the list is %+v", list)
	}
	if stderr := rootfs(exitFailed, nil, "remove", first.Digest); !strings.HasPrefix(stderr, "rootfs_in_use: ") {
		t.Errorf("removing the configured one: %s", stderr)
	}
	configure(t, prefix, "nonsense")
	if stderr := rootfs(exitFailed, nil, "remove", again.Digest); !strings.HasPrefix(stderr, "invalid_config: ") {
		t.Errorf("removing while nobody knows: %s", stderr)
	}
	must(t, os.RemoveAll(prefix+"/etc"))
	rootfs(0, nil, "remove", first.Digest)
	rootfs(0, nil, "remove", again.Digest[7:20])
	rootfs(0, &list, "list")
	if len(list) != 0 {
		t.Errorf("left: %+v", list)
	}
}

// configure writes a configuration that names the digest alone.
func configure(t *testing.T, prefix, digest string) {
	t.Helper()
	must(t, os.MkdirAll(prefix+"/etc/deployments", 0o700))
	broker := "[runsc]\npath = \"/r\"\nmanifest = \"/m\"\ndigest = \"sha256:" + strings.Repeat("0", 64) + "\"\n[rootfs]\ndigest = \"" + digest + "\"\n[bridge]\nfirst_uid = 2000000\nuid_count = 1000\n"
	deployment := "peer_uids = [0]\ndefault_profile = \"pi\"\n[workspaces.w]\nroot = \"/srv/w\"\nuid = 1\ngid = 1\n[profiles.pi]\nkind = \"pi\"\n"
	must(t, errors.Join(os.WriteFile(prefix+"/etc/broker.toml", []byte(broker), 0o600), os.WriteFile(prefix+"/etc/deployments/d.toml", []byte(deployment), 0o600)))
}

// The command line of rootfs: mistakes are usage, failures say what to do.
func TestRootfsCommandLine(t *testing.T) {
	prefix, source := newRootfsPrefix(t)
	for name, c := range map[string]struct {
		args   []string
		exit   int
		stderr string
	}{
		"no source":         {[]string{"import"}, exitUsage, "usage: give one source"},
		"two sources":       {[]string{"import", "a", "b"}, exitUsage, "usage: give one source"},
		"missing source":    {[]string{"import", source + "/none"}, exitFailed, "rootfs_failed: "},
		"no archive":        {[]string{"import", source + "/a"}, exitFailed, "rootfs_archive_invalid: "},
		"another digest":    {[]string{"import", source, "--digest", "sha256:0"}, exitFailed, "artifact_digest_mismatch: "},
		"two digests":       {[]string{"verify", "a", "b"}, exitUsage, "usage: give at most one digest"},
		"an unknown digest": {[]string{"remove", "abc"}, exitFailed, "rootfs_missing: "},
		"unknown to verify": {[]string{"verify", "abc"}, exitFailed, "rootfs_missing: "},
		"nothing to verify": {[]string{"verify"}, 0, ""},
		"help":              {[]string{"import", "--help"}, 0, ""},
	} {
		var stdout, stderr bytes.Buffer
		got := run(append([]string{"--prefix", prefix, "rootfs"}, c.args...), &stdout, &stderr)
		if got != c.exit || !strings.HasPrefix(stderr.String(), c.stderr) {
			t.Errorf("%s: exit %d, %q", name, got, &stderr)
		}
	}
}

// startImport starts an import in a process of its own that waits for the
// rest of its archive. It returns the pipe that keeps it waiting.
func startImport(t *testing.T, prefix string) (*exec.Cmd, io.WriteCloser, *bytes.Buffer) {
	t.Helper()
	child := exec.Command("/proc/self/exe", "--prefix", prefix, "rootfs", "import", "-")
	child.Env = append(os.Environ(), childVariable+"=1")
	in, err := child.StdinPipe()
	must(t, err)
	var stderr bytes.Buffer
	child.Stderr = &stderr
	must(t, child.Start())
	w := tar.NewWriter(in)
	must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "half", Mode: 0o644, Size: 100}))
	_, err = io.WriteString(w, "the beginning")
	must(t, err)
	deadline := time.Now().Add(time.Minute)
	for {
		if found, _ := filepath.Glob(prefix + "/var/rootfs/.import-*/tree/half"); len(found) == 1 {
			return child, in, &stderr
		}
		if time.Now().After(deadline) {
			t.Errorf("the import does not begin: %s", &stderr)
			return child, in, &stderr
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// R80: Ctrl-C ends an import that waits for its source, and leaves nothing; so
// does a source that ends early; what a kill leaves goes with the next list.
func TestRootfsImportInterrupted(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(*exec.Cmd, io.Closer) error
		stderr string
		left   int
	}{
		"interrupt": {func(c *exec.Cmd, _ io.Closer) error { return c.Process.Signal(unix.SIGINT) }, "rootfs_cancelled: ", 0},
		"terminate": {func(c *exec.Cmd, _ io.Closer) error { return c.Process.Signal(unix.SIGTERM) }, "rootfs_cancelled: ", 0},
		"end early": {func(_ *exec.Cmd, in io.Closer) error { return in.Close() }, "rootfs_archive_invalid: ", 0},
		"kill":      {func(c *exec.Cmd, _ io.Closer) error { return c.Process.Kill() }, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			prefix, _ := newRootfsPrefix(t)
			child, in, stderr := startImport(t, prefix)
			must(t, c.end(child, in))
			err := child.Wait()
			in.Close()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || !strings.HasPrefix(stderr.String(), c.stderr) {
				t.Errorf("got %v, %s", err, stderr)
			}
			if left, err := os.ReadDir(prefix + "/var/rootfs"); err != nil || len(left) != c.left {
				t.Errorf("left: %v, %v", left, err)
			}
			admin(t, 0, nil, "--prefix", prefix, "rootfs", "list")
			if left, err := os.ReadDir(prefix + "/var/rootfs"); err != nil || len(left) != 0 {
				t.Errorf("left after a list: %v, %v", left, err)
			}
		})
	}
}
