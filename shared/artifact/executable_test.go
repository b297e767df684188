package artifact

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// program copies a real executable, since a script can't be executed by a
// close-on-exec descriptor.
func program(t *testing.T, of string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	must(t, os.Chmod(dir, 0o755))
	data, err := os.ReadFile(of)
	must(t, err)
	write(t, filepath.Join(dir, "program"), string(data), 0o755)
	return filepath.Join(dir, "program")
}

// R17: what runs is the file that was hashed, also after the path leads to
// another one; the descriptor is close-on-exec and out of a child's way.
func TestExecutableRunsByDescriptor(t *testing.T) {
	name := program(t, "/bin/echo")
	x, err := openExecutable(t.Context(), seal(t, name), self)
	must(t, err)
	defer x.Close()
	must(t, os.Rename(program(t, "/bin/false"), name))

	cmd := exec.Command(x.Path(), "verified")
	for range 8 { // more than the number the descriptor would have had
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.Stdin)
	}
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "verified" {
		t.Fatalf("got %q and %v", out, err)
	}
	if flags, err := unix.FcntlInt(uintptr(x.fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags are %#x, %v", flags, err)
	}
	must(t, x.VerifyIdentity())
}

// R17: a file that is not the one pinned is never made executable.
func TestOpenExecutableRefuses(t *testing.T) {
	cases := []struct {
		name, code string
		do         func(t *testing.T, loc *Location)
	}{
		{"one byte changed", CodeDigestMismatch, func(t *testing.T, l *Location) {
			f, err := os.OpenFile(l.Path, os.O_RDWR, 0)
			must(t, err)
			_, err = f.WriteAt([]byte{0xff}, 4096)
			must(t, err)
			must(t, f.Close())
		}},
		{"swapped", CodeDigestMismatch, func(t *testing.T, l *Location) { must(t, os.Rename(program(t, "/bin/false"), l.Path)) }},
		{"setuid", CodeDigestMismatch, func(t *testing.T, l *Location) { must(t, unix.Chmod(l.Path, 0o4755)) }},
		{"hard link", CodeForbiddenEntry, func(t *testing.T, l *Location) { must(t, os.Link(l.Path, l.Path+"2")) }},
		{"not executable", CodeForbiddenEntry, func(t *testing.T, l *Location) {
			must(t, os.Chmod(l.Path, 0o644))
			*l = seal(t, l.Path)
		}},
		{"a tree", CodeForbiddenEntry, func(t *testing.T, l *Location) { *l = seal(t, newTree(t)) }},
		{"gone", CodeMissing, func(t *testing.T, l *Location) { must(t, os.Remove(l.Path)) }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			loc := seal(t, program(t, "/bin/echo"))
			c.do(t, &loc)
			before := openFDs(t)
			_, err := openExecutable(t.Context(), loc, self)
			wantCode(t, err, c.code)
			if after := openFDs(t); after != before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
		})
	}
}
