package bundle

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"
)

// request draws what a client may send: any value that the wire does not
// refuse.
func request(t *rapid.T) *wire.Create {
	r := wire.Create{ID: 1, Workspace: "project"}
	set := func(change func(*wire.Create)) {
		next := r
		next.Attachments = slices.Clone(r.Attachments)
		change(&next)
		if _, err := wire.Encode(next); err == nil {
			r = next
		}
	}
	value := func(label string, sane ...string) string {
		return rapid.OneOf(rapid.SampledFrom(append(sane, "", "-x", "--mcp-config", "a b", "../x", "x\x00y")), rapid.String()).Draw(t, label)
	}
	set(func(r *wire.Create) {
		r.AgentSession = value("session", "a", "0-._Z", strings.Repeat("a", wire.MaxName))
	})
	set(func(r *wire.Create) {
		r.Model = value("model", "a/b", "a/b:c@d/e+f", "a/"+strings.Repeat("b", wire.MaxModel-2))
	})
	set(func(r *wire.Create) { r.Thinking = value("thinking", "off", "max") })
	for range rapid.IntRange(0, 4).Draw(t, "attachments") {
		set(func(r *wire.Create) {
			kind := wire.AttachmentKind(value("kind", "extension", "extension", "mcpConfig"))
			r.Attachments = append(r.Attachments, wire.Attachment{Kind: kind, Name: value("name", "a", "A", "a.ts", "mcp.json")})
		})
	}
	return &r
}

// session draws any session, as the broker might describe it.
func session(t *rapid.T) Session {
	text := rapid.String()
	return Session{
		ID: wire.SessionID(text.Draw(t, "id")), Rootfs: text.Draw(t, "rootfs"), Command: PiCommand(request(t)), Env: PiEnv(),
		UID: rapid.Uint32().Draw(t, "uid"), GID: rapid.Uint32().Draw(t, "gid"),
		Workspace: text.Draw(t, "workspace"), StateDir: text.Draw(t, "state"), Files: []File{{Source: text.Draw(t, "file"), Destination: HomeDir + "/.pi/agent/auth.json"}}, AttachmentsDir: text.Draw(t, "attachments"),
		ReadOnly: rapid.Bool().Draw(t, "ro"), Hostname: text.Draw(t, "host"), CgroupPath: text.Draw(t, "cgroup"),
		Limits: Limits{MemoryBytes: rapid.Int64().Draw(t, "memory"), PIDs: rapid.Int64().Draw(t, "pids"), TmpBytes: rapid.Int64().Draw(t, "tmp")},
	}
}

// R10 R15: whatever a client sends, the bundle has what the table has and
// nothing else: blanked by the values that may differ, all bundles are equal.
func TestNothingIsAdded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := session(t)
		spec := Build(s)
		checkMounts(t, s, spec.Mounts)
		if !slices.Equal(spec.Process.Env, PiEnv()) {
			t.Fatalf("the environment is %q", spec.Process.Env)
		}
		spec.Mounts, spec.Process.Args, spec.Process.Rlimits, spec.Linux.Resources = nil, nil, nil, nil
		got := Build(Session{
			Rootfs: s.Rootfs, Env: PiEnv(), UID: s.UID, GID: s.GID, Hostname: s.Hostname, CgroupPath: s.CgroupPath,
		})
		got.Mounts, got.Process.Rlimits, got.Linux.Resources = nil, nil, nil
		if !reflect.DeepEqual(spec, got) {
			t.Fatalf("the bundle differs from a plain one:\n%+v\n%+v", spec, got)
		}
	})
	checkPlain(t, Build(Session{}))
}

// checkPlain says in words what no bundle has.
func checkPlain(t *testing.T, spec *specs.Spec) {
	c := spec.Process.Capabilities
	if len(c.Bounding)+len(c.Effective)+len(c.Permitted)+len(c.Inheritable)+len(c.Ambient) != 0 {
		t.Error("there are capabilities")
	}
	if !spec.Process.NoNewPrivileges || !spec.Root.Readonly || spec.Process.Terminal {
		t.Error("no_new_privs, the read-only root, or the absence of a terminal is missing")
	}
	if spec.Hooks != nil || len(spec.Annotations) != 0 || len(spec.Linux.Devices) != 0 || len(spec.Linux.Sysctl) != 0 {
		t.Error("there are hooks, annotations, devices or sysctls")
	}
	if len(spec.Linux.UIDMappings)+len(spec.Linux.GIDMappings) != 0 || len(spec.Process.User.AdditionalGids) != 0 {
		t.Error("there are mappings or groups")
	}
	for _, n := range spec.Linux.Namespaces {
		if n.Path != "" {
			t.Errorf("the namespace %s is another's", n.Type)
		}
	}
}

func checkMounts(t *rapid.T, s Session, mounts []specs.Mount) {
	table := map[string]struct {
		kind, source string
		writable     bool
	}{
		"/proc": {"proc", "proc", true}, "/dev": {"tmpfs", "tmpfs", true}, "/sys": {"sysfs", "sysfs", false},
		"/run": {"tmpfs", "tmpfs", true}, "/tmp": {"tmpfs", "tmpfs", true},
		WorkspaceDir: {"bind", s.Workspace, !s.ReadOnly}, HomeDir: {"bind", s.StateDir, true},
	}
	if s.AttachmentsDir != "" {
		table[AttachmentsDir] = struct {
			kind, source string
			writable     bool
		}{"bind", s.AttachmentsDir, false}
	}
	for _, f := range s.Files {
		table[f.Destination] = struct {
			kind, source string
			writable     bool
		}{"bind", f.Source, false}
	}
	for _, m := range mounts {
		want, ok := table[m.Destination]
		delete(table, m.Destination)
		if !ok || m.Type != want.kind || m.Source != want.source || slices.Contains(m.Options, "ro") == want.writable {
			t.Fatalf("an unexpected mount: %+v", m)
		}
		needs := []string{"nosuid"}
		if m.Type == "bind" {
			needs = []string{"bind", "rprivate", "nosuid", "nodev"}
		}
		for _, o := range needs {
			if !slices.Contains(m.Options, o) {
				t.Fatalf("%s is missing: %+v", o, m)
			}
		}
		if slices.ContainsFunc(m.Options, func(o string) bool {
			return strings.Contains(o, "shared") || strings.Contains(o, "slave") || o == "rbind"
		}) {
			t.Fatalf("a mount lets others through: %+v", m)
		}
	}
	if len(table) != 0 {
		t.Fatalf("mounts are missing: %v", table)
	}
}

// R10: Pi's arguments are a fixed beginning and then pairs of a fixed option
// and a value of the request, which is no option; the whole says no more than
// the request.
func TestArguments(t *testing.T) {
	fixed := []string{"/usr/bin/tini", "-s", "--", "/usr/local/bin/pi", "--mode", "rpc"}
	rapid.Check(t, func(t *rapid.T) {
		r := request(t)
		args := PiCommand(r)
		if len(args) < len(fixed) || !slices.Equal(args[:len(fixed)], fixed) || len(args)%2 != 0 {
			t.Fatalf("the arguments are %q", args)
		}
		var got wire.Create
		for pair := range slices.Chunk(args[len(fixed):], 2) {
			value := pair[1]
			if strings.HasPrefix(value, "-") || strings.ContainsAny(value, " \x00\n") || strings.Contains(value, "../") {
				t.Fatalf("the value %q of %s", value, pair[0])
			}
			attachment := func(kind wire.AttachmentKind) {
				name, ok := strings.CutPrefix(value, AttachmentsDir+"/")
				if !ok || strings.Contains(name, "/") {
					t.Fatalf("the attachment %q", value)
				}
				got.Attachments = append(got.Attachments, wire.Attachment{Kind: kind, Name: name})
			}
			switch pair[0] {
			case "--session-id":
				got.AgentSession = value
			case "--model":
				got.Model = value
			case "--thinking":
				got.Thinking = value
			case "--extension":
				attachment(wire.AttachmentExtension)
			case "--mcp-config":
				attachment(wire.AttachmentMCPConfig)
			default:
				t.Fatalf("the option %q", pair[0])
			}
		}
		got.ID, got.Workspace = r.ID, r.Workspace
		if !reflect.DeepEqual(&got, r) {
			t.Fatalf("asked for %+v, the arguments say %+v", *r, got)
		}
	})
}

// R10: the wire refuses what could be an option or a path, and accepts Pi's
// levels; nothing behind it looks again.
func TestRefusedValues(t *testing.T) {
	for name, change := range map[string]func(*wire.Create){
		"option as session":         func(r *wire.Create) { r.AgentSession = "--help" },
		"path as session":           func(r *wire.Create) { r.AgentSession = "../../etc/passwd" },
		"long session":              func(r *wire.Create) { r.AgentSession = strings.Repeat("a", 65) },
		"line feed in session":      func(r *wire.Create) { r.AgentSession = "a\nb" },
		"trailing line feed":        func(r *wire.Create) { r.AgentSession = "a\n" },
		"NUL":                       func(r *wire.Create) { r.AgentSession = "a\x00" },
		"option as model":           func(r *wire.Create) { r.Model = "--extension=x/y" },
		"model's name is an option": func(r *wire.Create) { r.Model = "x/--help" },
		"model alone":               func(r *wire.Create) { r.Model = "model" },
		"option as thinking":        func(r *wire.Create) { r.Thinking = "--verbose" },
		"unknown thinking":          func(r *wire.Create) { r.Thinking = "higher" },
		"path as extension":         func(r *wire.Create) { r.Attachments[0].Name = "../workspace/evil.ts" },
		"option as extension":       func(r *wire.Create) { r.Attachments[0].Name = "-e" },
		"hidden extension":          func(r *wire.Create) { r.Attachments[0].Name = ".ts" },
		"name of another kind's":    func(r *wire.Create) { r.Attachments[0].Name = r.Attachments[1].Name },
		"two MCP configurations":    func(r *wire.Create) { r.Attachments[0].Kind = wire.AttachmentMCPConfig },
		"unknown kind":              func(r *wire.Create) { r.Attachments[0].Kind = "hook" },
		"too many bytes":            func(r *wire.Create) { r.Attachments[0].Data = make([]byte, wire.MaxAttachmentBytes+1) },
	} {
		t.Run(name, func(t *testing.T) {
			r := fullRequest()
			change(r)
			if _, err := wire.Encode(*r); err == nil {
				t.Errorf("accepted; the arguments would be %q", PiCommand(r))
			}
		})
	}
}
