package client

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// R41: a cursor comes back as it was saved, and nothing else is left in its
// folder.
func TestCursorFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cursor")
	if _, err := LoadCursor(path); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []wire.Cursor{{Epoch: testEpoch}, {Epoch: testEpoch, Sequence: 7}, {Epoch: "ffffffffffffffff", Sequence: wire.MaxInteger}} {
		if err := SaveCursor(path, want); err != nil {
			t.Fatal(err)
		}
		if got, err := LoadCursor(path); err != nil || got != want {
			t.Fatalf("got %+v, %v", got, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("the folder holds %v", entries)
	}
	if info, err := entries[0].Info(); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the mode is %v", info.Mode())
	}
	for _, bad := range []wire.Cursor{{}, {Epoch: "xyz", Sequence: 1}, {Epoch: testEpoch, Sequence: wire.MaxInteger + 1}} {
		wantCode(t, SaveCursor(path, bad), wire.CodeInvalidCursor)
	}
}

// A save that fails leaves the cursor before it, and no litter.
func TestCursorFileThatCannotBeReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cursor")
	if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := SaveCursor(path, wire.Cursor{Epoch: testEpoch, Sequence: 1}); err == nil {
		t.Fatal("a folder was replaced")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Fatalf("the folder holds %v", entries)
	}
	if err := SaveCursor(filepath.Join(dir, "none", "cursor"), wire.Cursor{Epoch: testEpoch}); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("got %v", err)
	}
}

func TestDamagedCursorFiles(t *testing.T) {
	const good = "paseo-sandbox-cursor 1 0011223344556677 42\n"
	path := filepath.Join(t.TempDir(), "cursor")
	for _, content := range []string{
		"", "\n", good[:len(good)-1], good + "\n", good + good, " " + good, good[1:],
		"paseo-sandbox-cursor 2 0011223344556677 42\n", "paseo-sandbox-cursor 1 001122334455667 42\n",
		"paseo-sandbox-cursor 1 0011223344556677 -1\n", "paseo-sandbox-cursor 1 0011223344556677 042\n",
		"paseo-sandbox-cursor 1 0011223344556677 +4\n", "paseo-sandbox-cursor 1 0011223344556677 99999999999999999999\n",
		"paseo-sandbox-cursor 1 001122334455667G 42\n", "paseo-sandbox-cursor 1  0011223344556677 42\n", string(repeat(500)),
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadCursor(path); wire.CodeOf(err) != CodeInvalidCursorFile {
			t.Errorf("%q: got %v", content, err)
		}
	}
}
