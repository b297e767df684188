package bundle

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the golden files")

func piSession(t *testing.T) Session {
	t.Helper()
	command, err := PiCommand("work-1", "anthropic/claude-x", "high", []string{"ask.ts"})
	if err != nil {
		t.Fatal(err)
	}
	return Session{
		ID: "0198c0de00007000800000000000beef", Rootfs: "/var/lib/paseo-sandbox/rootfs/one/tree",
		Command: command, Env: PiEnv(), UID: 1000, GID: 1000,
		Workspace:      "/run/paseo-sandbox/mounts/0198c0de00007000800000000000beef",
		StateDir:       "/var/lib/paseo-sandbox/state/0198c0de00007000800000000000beef",
		AttachmentsDir: "/var/lib/paseo-sandbox/bundles/0198c0de00007000800000000000beef/attachments",
		CgroupPath:     "/paseo-sandbox/0198c0de00007000800000000000beef",
		Limits:         Limits{MemoryBytes: 1 << 30, CountSwap: true, CPUs: 1.5, PIDs: 512, OpenFiles: 4096, TmpBytes: 64 << 20},
		Hostname:       "sandbox",
	}
}

// R15: the bundle is what the golden file says, whole.
func TestGolden(t *testing.T) {
	readOnly := piSession(t)
	readOnly.ReadOnly = true
	program := piSession(t)
	program.Command, program.AttachmentsDir, program.CgroupPath = []string{"/bin/cat"}, "", ""
	for name, s := range map[string]Session{"pi": piSession(t), "pi-read-only": readOnly, "program": program} {
		t.Run(name, func(t *testing.T) {
			b, err := json.MarshalIndent(Build(s), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".json")
			if *update {
				if err := os.WriteFile(file, append(b, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil || string(want) != string(b)+"\n" {
				t.Errorf("the bundle differs from %s (%v):\n%s", file, err, b)
			}
		})
	}
}

// R15: whatever the session is made of, nothing is added beside its values.
func TestNothingIsAdded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String()
		s := Session{
			ID: wire.SessionID(text.Draw(t, "id")), Rootfs: text.Draw(t, "rootfs"), Command: []string{text.Draw(t, "command")},
			UID: rapid.Uint32().Draw(t, "uid"), Workspace: text.Draw(t, "workspace"), StateDir: text.Draw(t, "state"),
			AttachmentsDir: text.Draw(t, "attachments"), ReadOnly: rapid.Bool().Draw(t, "ro"), Hostname: text.Draw(t, "host"),
		}
		spec := Build(s)
		c := spec.Process.Capabilities
		if len(c.Bounding)+len(c.Effective)+len(c.Permitted)+len(c.Inheritable)+len(c.Ambient) != 0 {
			t.Fatal("there are capabilities")
		}
		if !spec.Process.NoNewPrivileges || !spec.Root.Readonly || spec.Hooks != nil || len(spec.Annotations) != 0 || len(spec.Linux.Devices) != 0 {
			t.Fatalf("the policy is broken: %+v", spec)
		}
		for _, m := range spec.Mounts {
			if m.Type == "bind" && !slices.Contains(m.Options, "rprivate") {
				t.Fatalf("a mount lets others through: %+v", m)
			}
			if !slices.Contains(m.Options, "nosuid") {
				t.Fatalf("a mount allows setuid: %+v", m)
			}
			if !slices.Contains([]string{"/proc", "/dev", "/sys", "/run", "/tmp", WorkspaceDir, HomeDir, AttachmentsDir}, m.Destination) {
				t.Fatalf("a mount at %q", m.Destination)
			}
		}
	})
}

// R10: a value that could be an option or a path is refused.
func TestPiCommandRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		session, model, thinking, extension string
		code                                wire.Code
	}{
		"option as session":   {session: "--help", code: wire.CodeInvalidArgument},
		"path as session":     {session: "../../etc/passwd", code: wire.CodeInvalidArgument},
		"long session":        {session: strings.Repeat("a", 65), code: wire.CodeInvalidArgument},
		"line feed":           {session: "a\nb", code: wire.CodeInvalidArgument},
		"trailing line feed":  {session: "a\n", code: wire.CodeInvalidArgument},
		"NUL":                 {session: "a\x00", code: wire.CodeInvalidArgument},
		"option as model":     {model: "--extension=x/y", code: wire.CodeInvalidArgument},
		"model alone":         {model: "model", code: wire.CodeInvalidArgument},
		"unknown thinking":    {thinking: "--verbose", code: wire.CodeInvalidArgument},
		"path as extension":   {extension: "../workspace/evil.ts", code: wire.CodeInvalidAttachment},
		"option as extension": {extension: "-e", code: wire.CodeInvalidAttachment},
		"hidden extension":    {extension: ".ts", code: wire.CodeInvalidAttachment},
	} {
		t.Run(name, func(t *testing.T) {
			var extensions []string
			if c.extension != "" {
				extensions = []string{c.extension}
			}
			if args, err := PiCommand(c.session, c.model, c.thinking, extensions); wire.CodeOf(err) != c.code {
				t.Errorf("got %q, %v", args, err)
			}
		})
	}
	args, err := PiCommand("", "", "", nil)
	if want := []string{"/usr/bin/tini", "-s", "--", "/usr/local/bin/pi", "--mode", "rpc"}; err != nil || !slices.Equal(args, want) {
		t.Errorf("without values: %q, %v", args, err)
	}
}

// Write refuses to replace a configuration.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, Build(piSession(t))); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(filepath.Join(dir, "config.json"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if err := Write(dir, Build(piSession(t))); err == nil {
		t.Error("a second write replaced the first")
	}
}
