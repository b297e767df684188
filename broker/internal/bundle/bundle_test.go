package bundle

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

var update = flag.Bool("update", false, "write the golden files")

// fullRequest uses all that a client can say about an agent.
func fullRequest() *wire.Create {
	return &wire.Create{
		ID: 1, Workspace: "project", AgentSession: "work-1", Model: "anthropic/claude-x", Thinking: "high",
		Attachments: []wire.Attachment{
			{Kind: wire.AttachmentExtension, Name: "ask.ts"},
			{Kind: wire.AttachmentMCPConfig, Name: "mcp.json"},
			{Kind: wire.AttachmentExtension, Name: "Ask.ts"},
		},
	}
}

// piSession is a session of Pi with everything.
func piSession() Session {
	return Session{
		ID: "0198c0de00007000800000000000beef", Rootfs: "/var/lib/paseo-sandbox/rootfs/one/tree",
		Command: PiCommand(fullRequest()), Env: PiEnv(), UID: 1000, GID: 1000,
		Workspace:      "/run/paseo-sandbox/mounts/0198c0de00007000800000000000beef",
		StateDir:       "/var/lib/paseo-sandbox/state/0198c0de00007000800000000000beef",
		AttachmentsDir: "/var/lib/paseo-sandbox/bundles/0198c0de00007000800000000000beef/attachments",
		Files:          []File{{Source: "/var/lib/paseo-sandbox/bundles/0198c0de00007000800000000000beef/credentials/auth.json", Destination: HomeDir + "/.pi/agent/auth.json"}},
		CgroupPath:     "/paseo-sandbox/0198c0de00007000800000000000beef",
		Limits:         Limits{MemoryBytes: 1 << 30, CountSwap: true, CPUs: 1.5, PIDs: 512, OpenFiles: 4096, TmpBytes: 64 << 20},
		Hostname:       "sandbox",
	}
}

// R15: the bundle is what the golden file says, whole.
func TestGolden(t *testing.T) {
	readOnly := piSession()
	readOnly.ReadOnly = true
	plain := piSession()
	plain.Command, plain.AttachmentsDir, plain.Files = PiCommand(&wire.Create{}), "", nil
	program := piSession()
	program.Command, program.AttachmentsDir, program.Files = []string{"/bin/cat"}, "", nil
	unlimited := program
	unlimited.Limits, unlimited.CgroupPath = Limits{}, ""
	for name, s := range map[string]Session{
		"pi-everything": piSession(), "pi-read-only": readOnly, "pi-plain": plain, "program": program, "program-unlimited": unlimited,
	} {
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

// Write refuses to replace a configuration.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, Build(piSession())); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(filepath.Join(dir, "config.json"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if err := Write(dir, Build(piSession())); err == nil {
		t.Error("a second write replaced the first")
	}
}
