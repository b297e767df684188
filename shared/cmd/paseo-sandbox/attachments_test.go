package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/shared/client/clienttest"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// writeFiles makes files of the given contents and returns their folder.
func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// R10: the contents of files are sent, with their kinds and names and no path.
func TestRunSendsAttachments(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	dir := writeFiles(t, map[string]string{"a.ts": "one", "deep/mcp.json": "{}"})
	args := append(runArgs, "--extension", dir+"/a.ts", "--mcp-config", dir+"/deep/mcp.json")
	if status, _, errs := call(t, server, "", args...); status != 0 {
		t.Fatalf("%d: %s", status, errs)
	}
	got := server.Requests()[0].(wire.Create).Attachments
	want := []wire.Attachment{
		{Kind: wire.AttachmentExtension, Name: "a.ts", Data: []byte("one")},
		{Kind: wire.AttachmentMCPConfig, Name: "mcp.json", Data: []byte("{}")},
	}
	if len(got) != 2 || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("sent %v", got)
	}
}

// R71: files that the broker would refuse are refused before anything is sent,
// and named.
func TestRunRefusesAttachments(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	files := map[string]string{
		"a.ts": "one", "other/a.ts": "two", "mcp.json": "{}", ".hidden": "", "-e.ts": "",
		"large": strings.Repeat("x", wire.MaxAttachmentBytes+1), "half": strings.Repeat("x", wire.MaxAttachmentBytes),
	}
	var many []string
	for i := range wire.MaxAttachments + 1 {
		name := fmt.Sprintf("many%d", i)
		files[name] = ""
		many = append(many, "--extension", name)
	}
	dir := writeFiles(t, files)
	for name, c := range map[string]struct {
		args []string
		code wire.Code
		says string
	}{
		"missing":        {[]string{"--extension", "none.ts"}, codeUnreadableFile, "none.ts"},
		"folder":         {[]string{"--mcp-config", "other"}, codeUnreadableFile, "other"},
		"large":          {[]string{"--mcp-config", "large"}, wire.CodeInvalidAttachment, "large"},
		"large together": {[]string{"--extension", "a.ts", "--mcp-config", "half"}, wire.CodeInvalidAttachment, "half"},
		"same name":      {[]string{"--extension", "a.ts", "--mcp-config", "other/a.ts"}, wire.CodeInvalidAttachment, "other/a.ts"},
		"hidden":         {[]string{"--extension", ".hidden"}, wire.CodeInvalidAttachment, ".hidden"},
		"option":         {[]string{"--extension", "-e.ts"}, wire.CodeInvalidAttachment, "-e.ts"},
		"many":           {many, wire.CodeInvalidAttachment, "17 files"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"--json"}, runArgs...)
			for _, a := range c.args {
				if strings.HasPrefix(a, "--") {
					args = append(args, a)
				} else {
					args = append(args, filepath.Join(dir, a))
				}
			}
			status, out, errs := call(t, server, "", args...)
			if status == 0 || out != "" || !strings.Contains(errs, string(c.code)) || !strings.Contains(errs, c.says) {
				t.Errorf("%d, %q, %s", status, out, errs)
			}
		})
	}
	if n := len(server.Requests()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}
