package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
)

// R62 R64: Pi finds the credential, can't change it, and can write beside it;
// its contents are in no log, argument, environment, record or configuration.
func TestCredentials(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	const key = "sk-e2e-4c1f0e6d9b2a47d8"
	file := filepath.Join(t.TempDir(), "key.json")
	must(t, os.WriteFile(file, []byte(`{"anthropic":{"type":"api_key","key":"`+key+`"}}`), 0o600))
	s := startSystem(t, harness.Options{Profiles: fmt.Sprintf("[credentials.provider]\nfile = %q\nas = \"auth.json\"\n", file)})
	ctx, cancel := context.WithTimeout(t.Context(), bytesTimeout)
	defer cancel()
	b, err := client.DialBroker(ctx, s.BrokerSocket())
	must(t, err)
	defer b.Close()
	info, err := b.Create(ctx, client.CreateOptions{Workspace: "project"})
	must(t, err)
	if got := askPi(ctx, t, b, info, `{"type":"get_available_models","id":"models"}`); !strings.Contains(got, "claude") {
		t.Errorf("Pi has no model of the provider: %.300s", got)
	}
	got := askPi(ctx, t, b, info, `{"type":"bash","id":"bash","command":"cd ~/.pi/agent; grep -c api_key auth.json; echo x > auth.json || rm -f auth.json || chmod 777 auth.json || echo unchanged; mkdir lock && echo made"}`)
	if !strings.Contains(got, "unchanged") || !strings.Contains(got, "made") || !strings.Contains(got, "1\\n") {
		t.Errorf("inside: %s", got)
	}
	if b, err := os.ReadFile(file); err != nil || !bytes.Contains(b, []byte(key)) {
		t.Errorf("the file became %q, %v", b, err)
	}
	for _, pattern := range []string{"/proc/[0-9]*/cmdline", "/proc/[0-9]*/environ"} {
		found, err := filepath.Glob(pattern)
		must(t, err)
		for _, path := range found {
			if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(key)) {
				t.Errorf("%s holds the key", path)
			}
		}
	}
	copies := holding(t, s.Prefix, key)
	if len(copies) != 1 || copies[0] != filepath.Join(s.Prefix, "var/bundles", string(info.Session), "credentials/auth.json") {
		t.Errorf("the key is in %v", copies)
	}
	must(t, b.Delete(ctx, info.Session))
	if copies := holding(t, s.Prefix, key); len(copies) > 0 {
		t.Errorf("after the session the key is in %v", copies)
	}
}

// holding lists the files below dir that contain the text.
func holding(t *testing.T, dir, text string) []string {
	t.Helper()
	var found []string
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if filepath.Base(path) == "null-netns" {
			return nil // runsc's mount of a namespace, which is no file
		}
		if bytes.Contains(b, []byte(text)) {
			found = append(found, path)
		}
		return err
	}))
	return found
}
