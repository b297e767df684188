package workspace

import (
	"os"
	"strings"
	"testing"
)

// FuzzMounts: whatever the table of mounts holds, it is parsed or refused, and
// a line is one mount. A workspace's owner chooses names of mount points.
func FuzzMounts(f *testing.F) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(b))
	f.Add("36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n")
	f.Add("36 35 98:0 / /with\\040space\\134040 rw shared:1 unbindable - tmpfs none rw\n")
	f.Add("36 35 98:0 / /x rw -")
	f.Add("- - - - - - - -\n")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseMounts([]byte(text))
		if err != nil {
			return
		}
		lines := strings.Count(text, "\n")
		if text != "" && !strings.HasSuffix(text, "\n") {
			lines++
		}
		if len(all) != lines {
			t.Errorf("%d mounts of %d lines", len(all), lines)
		}
	})
}

// FuzzUnescape: what the kernel escapes comes back as it was (seq_escape with
// " \t\n\\", fs/proc_namespace.c).
func FuzzUnescape(f *testing.F) {
	f.Add("/a b\tc\nd\\040")
	f.Add("/\\")
	f.Fuzz(func(t *testing.T, name string) {
		escaped := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(name)
		if got := unescape(escaped); got != name {
			t.Errorf("%q became %q", name, got)
		}
	})
}
