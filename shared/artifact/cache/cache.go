package cache

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
)

// EnvDir is the environment variable that names another cache directory.
const EnvDir = "PASEO_SANDBOX_CACHE"

// IndexName is the name of the index within the cache directory, and TestsName
// that of the one with what only tests need.
const (
	IndexName = "artifacts.json"
	TestsName = "tests.json"
)

const maxIndexBytes = 64 << 10

// Index names the artifacts that are ready for use.
type Index struct {
	Arch   string            `json:"arch"` // as Go spells it: "amd64" or "arm64"
	Runsc  artifact.Location `json:"runsc"`
	Rootfs Rootfs            `json:"rootfs"`
}

// Rootfs is the Pi rootfs with the versions it holds.
type Rootfs struct {
	artifact.Location
	NodeVersion string `json:"nodeVersion"`
	PiVersion   string `json:"piVersion"`
}

// Tests names the artifacts that only tests need.
type Tests struct {
	// Systemd is what lies over the Pi rootfs of a machine that boots.
	Systemd artifact.Location `json:"systemd"`
}

// Codes of [Error]. They are stable.
const (
	CodeMissing = "artifacts_missing"       // no set-up has finished in this cache
	CodeInvalid = "artifacts_index_invalid" // the index can't be used
)

// Error says why the index could not be used.
type Error struct {
	Code, Message, Advice string
	Err                   error
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Message, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ErrorCode returns the stable code.
func (e *Error) ErrorCode() string { return e.Code }

// ErrorAdvice returns what to do.
func (e *Error) ErrorAdvice() string { return e.Advice }

// Dir returns the cache directory: $PASEO_SANDBOX_CACHE, else
// /var/cache/paseo-sandbox.
func Dir() string {
	if dir := os.Getenv(EnvDir); dir != "" {
		return dir
	}
	return "/var/cache/paseo-sandbox"
}

// Locate reads the index of a cache directory. That the artifacts are what the
// index says is for [artifact.Open] to find out.
func Locate(dir string) (*Index, error) {
	var ix Index
	err := read(dir, IndexName, "Run `make setup` as root.", &ix, func() bool {
		return ix.Arch != "" && ix.Runsc.Digest != "" && ix.Rootfs.Digest != ""
	})
	if err != nil {
		return nil, err
	}
	return &ix, nil
}

// LocateTests is Locate for what only tests need.
func LocateTests(dir string) (*Tests, error) {
	var ix Tests
	err := read(dir, TestsName, "Run `make setup-for-tests` as root.", &ix, func() bool { return ix.Systemd.Digest != "" })
	if err != nil {
		return nil, err
	}
	return &ix, nil
}

// read decodes an index strictly.
func read(dir, file, advice string, into any, whole func() bool) error {
	name := filepath.Join(dir, file)
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return &Error{CodeMissing, "no set-up has finished in " + dir, advice, err}
	}
	if err == nil && len(data) > maxIndexBytes {
		err = fmt.Errorf("it has more than %d bytes", maxIndexBytes)
	}
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(data))
		d.DisallowUnknownFields()
		if err = d.Decode(into); err == nil && d.More() {
			err = errors.New("something follows the object")
		}
	}
	if err == nil && !whole() {
		err = errors.New("a field is missing")
	}
	if err != nil {
		return &Error{CodeInvalid, "the index " + name + " can't be used", advice, err}
	}
	return nil
}

// Store replaces the index of a cache directory at once: a reader sees the old
// one or the new one.
func Store(dir string, ix *Index) error { return store(dir, IndexName, ix) }

// StoreTests is Store for what only tests need.
func StoreTests(dir string, ix *Tests) error { return store(dir, TestsName, ix) }

func store(dir, file string, ix any) error {
	data, err := json.MarshalIndent(ix, "", "  ")
	if err != nil {
		return err
	}
	return writeFileAtomic(filepath.Join(dir, file), append(data, '\n'))
}

// writeFileAtomic leaves the old file, or the new one complete and on disk.
func writeFileAtomic(name string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
