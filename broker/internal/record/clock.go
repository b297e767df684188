package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/trusted"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// Clock tells how long the host has been up, over all its boots, since the
// clock's file was made. Nobody sets it: setting the wall clock does not change
// it, and it stands still while the host is off or suspended
// (clock_gettime(2), CLOCK_MONOTONIC). So what is measured by it is never more
// than what has passed; it is less by what the last Save of a boot has missed.
// It is safe for concurrent use.
type Clock struct {
	path, boot string
	read       func() uint64
	mu         sync.Mutex
	before     uint64 // what earlier boots have counted
}

// saved is the clock's file.
type saved struct {
	Boot string `json:"boot"`
	// Before is what was counted before that boot, and Reading what it had
	// counted when this was written, in milliseconds.
	Before  uint64 `json:"before"`
	Reading uint64 `json:"reading"`
}

// OpenClock opens the clock whose file is at path, in a folder of root's. Boot
// is the kernel's boot id, and read is Monotonic but in tests. Error:
// CodeInvalidRecord.
func OpenClock(path, boot string, read func() uint64) (*Clock, error) {
	c := &Clock{path: path, boot: boot, read: read}
	dir, err := trusted.OpenDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	b, err := trusted.ReadFile(dir, filepath.Base(path), maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return c, c.Save()
	}
	if err != nil {
		return nil, err
	}
	var s saved
	if err := json.Unmarshal(b, &s); err != nil || s.Boot == "" || s.Before > wire.MaxInteger || s.Reading > wire.MaxInteger {
		return nil, &wire.Error{
			Code: CodeInvalidRecord, Message: "the clock of the sessions, " + path + ", can't be understood",
			Advice: "move it away and start the broker: how long sessions have had no writer is counted anew", Err: err,
		}
	}
	if c.before = s.Before; s.Boot != boot {
		c.before += s.Reading
	}
	return c, c.Save()
}

// Monotonic is what this boot has counted, in milliseconds.
func Monotonic() uint64 {
	var t unix.Timespec
	// It can't fail: the clock exists, and the address is valid.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return uint64(time.Duration(t.Nano()).Milliseconds())
}

// Now returns milliseconds.
func (c *Clock) Now() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.before + c.read()
}

// Save makes durable what this boot has counted.
func (c *Clock) Save() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, err := json.Marshal(saved{Boot: c.boot, Before: c.before, Reading: c.read()})
	if err != nil {
		return err
	}
	tmp := c.path + partial
	if err := writeDurably(tmp, append(b, '\n')); err != nil {
		return fmt.Errorf("save the clock: %w", errors.Join(err, os.Remove(tmp)))
	}
	if err := os.Rename(tmp, c.path); err != nil {
		return fmt.Errorf("save the clock: %w", err)
	}
	return nil
}
