package cache

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
)

// What is stored is found again, whole, with nothing left beside it.
func TestStoreAndLocate(t *testing.T) {
	dir := t.TempDir()
	want := Index{Arch: "amd64",
		Runsc:  artifact.Location{Path: "/c/runsc", Manifest: "/c/manifest", Digest: "sha256:1"},
		Rootfs: Rootfs{artifact.Location{Path: "/c/tree", Manifest: "/c/m", Digest: "sha256:2"}, "24.0.0", "0.84.2"}}
	for range 2 {
		if err := Store(dir, &want); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Locate(dir)
	if err != nil || *got != want {
		t.Fatalf("got %+v, %v", got, err)
	}
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 1 {
		t.Errorf("the folder holds %v, %v", names, err)
	}
	if st, err := os.Stat(filepath.Join(dir, IndexName)); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("got %v, %v", st.Mode(), err)
	}
}

// An index that is missing or can't be used is a typed error with advice.
func TestLocateRefuses(t *testing.T) {
	cases := []struct{ name, code, text string }{
		{"missing", CodeMissing, ""},
		{"not JSON", CodeInvalid, "runsc=/c/runsc"},
		{"unknown field", CodeInvalid, `{"arch":"amd64","other":1}`},
		{"two objects", CodeInvalid, `{"arch":"amd64","runsc":{"digest":"x"},"rootfs":{"digest":"y"}}{}`},
		{"no digest", CodeInvalid, `{"arch":"amd64"}`},
		{"too large", CodeInvalid, `{"arch":"` + strings.Repeat("a", maxIndexBytes) + `"}`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if c.text != "" {
				if err := os.WriteFile(filepath.Join(dir, IndexName), []byte(c.text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			_, err := Locate(dir)
			var e *Error
			if !errors.As(err, &e) || e.ErrorCode() != c.code || e.ErrorAdvice() == "" {
				t.Fatalf("got %v, want code %s", err, c.code)
			}
		})
	}
}

// The environment moves the cache.
func TestDir(t *testing.T) {
	t.Setenv(EnvDir, "")
	if got := Dir(); got != "/var/cache/paseo-sandbox" {
		t.Errorf("got %s", got)
	}
	t.Setenv(EnvDir, "/elsewhere")
	if got := Dir(); got != "/elsewhere" {
		t.Errorf("got %s", got)
	}
}
