package artifact

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
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

// R17: what runs is never other than what was hashed, whatever is done to the
// file after it was opened: a path that leads elsewhere does not matter, and
// what changes the open file is seen before the next use.
func TestExecutableChangedAfterOpening(t *testing.T) {
	overwrite := func(name string) error {
		data, err := os.ReadFile("/bin/false")
		if err != nil {
			return err
		}
		return os.WriteFile(name, data, 0) // as cp(1) does: in place
	}
	cases := []struct {
		name string
		do   func(name string) error
		code string // empty: it still runs
	}{
		{"replaced by rename", func(n string) error { return os.Rename(program(t, "/bin/false"), n) }, ""},
		{"removed", os.Remove, ""},
		{"renamed", func(n string) error { return os.Rename(n, n+".old") }, ""},
		{"replaced by a symlink", func(n string) error { return errors.Join(os.Remove(n), os.Symlink("/bin/false", n)) }, ""},
		{"its folder replaced", func(n string) error {
			dir := filepath.Dir(n)
			return errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o755), overwriteNew(n))
		}, ""},
		{"another hard link", func(n string) error { return os.Link(n, n+"2") }, ""},
		{"rewritten in place", overwrite, CodeIdentityChanged},
		{"rewritten through a hard link", func(n string) error { return errors.Join(os.Link(n, n+"2"), overwrite(n+"2")) }, CodeIdentityChanged},
		{"one byte, the size kept", func(n string) error {
			f, err := os.OpenFile(n, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte{0xff}, 4096)
			return errors.Join(err, f.Close())
		}, CodeIdentityChanged},
		{"cut off", func(n string) error { return os.Truncate(n, 4096) }, CodeIdentityChanged},
		{"rewritten, the time set back", func(n string) error {
			st, err := os.Stat(n)
			if err != nil {
				return err
			}
			return errors.Join(overwrite(n), os.Chtimes(n, st.ModTime(), st.ModTime()))
		}, CodeIdentityChanged},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			name := program(t, "/bin/echo")
			x, err := openExecutable(t.Context(), seal(t, name), self)
			must(t, err)
			defer x.Close()
			must(t, c.do(name))
			if c.code != "" {
				wantCode(t, x.VerifyIdentity(), c.code)
				return
			}
			must(t, x.VerifyIdentity())
			if out, err := exec.Command(x.Path(), "verified").Output(); err != nil || string(out) != "verified\n" {
				t.Errorf("got %q, %v", out, err)
			}
		})
	}
}

// overwriteNew writes a program where there is none.
func overwriteNew(name string) error {
	data, err := os.ReadFile("/bin/false")
	if err != nil {
		return err
	}
	return os.WriteFile(name, data, 0o755)
}

// R17: a file that someone else can change, or that is reached through a link,
// is refused before it is read.
func TestExecutableOfOthers(t *testing.T) {
	cases := []struct {
		name, code string
		do         func(t *testing.T, loc *Location)
	}{
		{"writable by the group", CodeDigestMismatch, func(t *testing.T, l *Location) { must(t, os.Chmod(l.Path, 0o775)) }},
		{"writable by others", CodeDigestMismatch, func(t *testing.T, l *Location) { must(t, os.Chmod(l.Path, 0o757)) }},
		{"in a folder of others", CodeNotRootOwned, func(t *testing.T, l *Location) { must(t, os.Chmod(filepath.Dir(l.Path), 0o777)) }},
		{"a symlink", CodeForbiddenEntry, func(t *testing.T, l *Location) {
			must(t, os.Rename(l.Path, l.Path+".real"))
			must(t, os.Symlink(l.Path+".real", l.Path))
		}},
		{"through a symlink", CodeForbiddenEntry, func(t *testing.T, l *Location) {
			dir := filepath.Dir(l.Path)
			must(t, os.Rename(dir, dir+".real"))
			must(t, os.Symlink(dir+".real", dir))
		}},
		{"a named pipe", CodeForbiddenEntry, func(t *testing.T, l *Location) {
			must(t, os.Remove(l.Path))
			must(t, unix.Mkfifo(l.Path, 0o755))
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			loc := seal(t, program(t, "/bin/echo"))
			c.do(t, &loc)
			_, err := openExecutable(t.Context(), loc, self)
			wantCode(t, err, c.code)
		})
	}
}

// R17: on a mount whose root another user owns, the file is refused, though it
// is root's and has the right content.
func TestExecutableOnAMountOfOthers(t *testing.T) {
	rootonly.Test(t)
	base := t.TempDir()
	at := filepath.Join(base, "mount")
	must(t, os.Mkdir(at, 0o755))
	must(t, unix.Mount("tmpfs", at, "tmpfs", 0, "size=16m,mode=0755,uid=1000,gid=1000"))
	t.Cleanup(func() { must(t, unix.Unmount(at, unix.MNT_DETACH)) })
	data, err := os.ReadFile("/bin/echo")
	must(t, err)
	write(t, filepath.Join(at, "program"), string(data), 0o755)
	loc := seal(t, program(t, "/bin/echo"))
	loc.Path = filepath.Join(at, "program")
	_, err = OpenExecutable(t.Context(), loc)
	wantCode(t, err, CodeNotRootOwned)
	must(t, os.Chown(at, 0, 0))
	x, err := OpenExecutable(t.Context(), loc)
	must(t, err) // the owner alone was the reason
	must(t, x.Close())
}
