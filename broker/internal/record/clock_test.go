package record

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"pgregory.net/rapid"
)

// host has a clock that counts while it is up, and a file of ours. What has
// really passed is in now; the wall clock is nowhere.
type host struct {
	path           string
	boot           string
	now, up, boots uint64
}

func (h *host) open(t interface{ Fatal(...any) }) *Clock {
	c, err := OpenClock(h.path, h.boot, func() uint64 { return h.up })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (h *host) reboot() {
	h.boots++
	h.boot, h.up = string(rune('a'+h.boots)), 0
}

// R35: whatever happens to host, broker and the clock's file, and in whichever
// order, what the clock has counted since an instant is never more than what
// has passed: nothing is reaped early. It does not stand still: without
// suspension, and with the time of each boot saved, it is exactly that.
func TestClockIsNeverAhead(t *testing.T) {
	rootonly.Test(t)
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		h := &host{path: filepath.Join(dir, "clock"), boot: "first"}
		os.Remove(h.path)
		c := h.open(t)
		began, stamp, missed := h.now, c.Now(), uint64(0)
		saved := h.now
		steps := rapid.SliceOfN(rapid.SampledFrom([]string{"run", "run", "save", "restart", "suspend", "reboot", "lose"}), 1, 40).Draw(t, "steps")
		for _, step := range steps {
			span := rapid.Uint64Range(1, 1_000_000).Draw(t, "span")
			switch step {
			case "run":
				h.now, h.up = h.now+span, h.up+span
			case "save":
				if err := c.Save(); err != nil {
					t.Fatal(err)
				}
				saved = h.now
			case "restart":
				c = h.open(t)
				saved = h.now
			case "suspend":
				h.now += span
				missed += span
				saved += span // of which nothing can be lost again
			case "reboot":
				missed += h.now - saved + span
				h.now += span
				h.reboot()
				c = h.open(t)
				saved = h.now
			case "lose":
				os.Remove(h.path)
				c = h.open(t)
				// A broker that starts takes stamps that are ahead for now's.
				if now := c.Now(); stamp > now {
					stamp = now
				}
				missed, saved = h.now-began, h.now
			}
			passed, counted := h.now-began, c.Now()-stamp
			if counted > passed {
				t.Fatalf("%s: it has counted %d, and %d have passed", step, counted, passed)
			}
			if counted+missed < passed {
				t.Fatalf("%s: it has counted %d of %d, and missed %d at most", step, counted, passed, missed)
			}
		}
	})
}

// A clock that can't be read stops the broker: to begin anew is for the
// operator to choose.
func TestClockOnBadFile(t *testing.T) {
	rootonly.Test(t)
	path := filepath.Join(t.TempDir(), "clock")
	for name, text := range map[string]string{
		"empty": "", "torn": `{"boot":"a","bef`, "no boot": `{"before":1,"reading":1}`, "negative": `{"boot":"a","before":-1}`, "beyond": `{"boot":"a","before":9007199254740992}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenClock(path, "a", Monotonic); wire.CodeOf(err) != CodeInvalidRecord {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenClock(path, "a", Monotonic); wire.CodeOf(err) != wire.CodeInvalidConfig {
		t.Errorf("writable by everybody: %v", err)
	}
	os.Remove(path)
	c, err := OpenClock(path, "a", Monotonic)
	if err != nil || c.Now() == 0 {
		t.Errorf("without a file: %v", err)
	}
	if _, err := os.Stat(path + partial); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("beside it there is %v", err)
	}
}
