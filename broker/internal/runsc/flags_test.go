package runsc

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/shared/artifact/cache"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
)

var update = flag.Bool("update", false, "write the golden file")

// R17: the flags of the pinned runsc and their defaults are those that were
// looked at. A new runsc with a new flag, or another default, fails here: read
// about each difference, close what opens something, and update the list.
func TestFlagsOfThePinnedRunsc(t *testing.T) {
	rootonly.Test(t)
	index, err := cache.Locate(cache.Dir())
	if err != nil {
		t.Fatal(err)
	}
	// It prints its flags and ends with 0, as its own "help" does.
	out, err := exec.Command(index.Runsc.Path, "flags").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const file = "testdata/flags.txt"
	if *update {
		if err := os.WriteFile(file, out, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(want, out) {
		t.Errorf("the flags differ from %s (%v):\n%s", file, err, out)
	}
	for _, f := range (&Runtime{}).flags("")[1:] {
		name, _, _ := strings.Cut(strings.TrimPrefix(f, "--"), "=")
		if !bytes.Contains(out, []byte("\n  -"+name+"\n")) && !bytes.Contains(out, []byte("\n  -"+name+" ")) {
			t.Errorf("runsc has no flag %s", f)
		}
	}
}
