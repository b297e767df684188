package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// forbidden are what a strict import refuses and a normalizing one mends, each
// with the class that it is reported as.
func forbidden() map[Class][]entry {
	return map[Class][]entry{
		ClassOwner:        {file("a", "x").owned(1000, 0)},
		ClassSetuid:       {file("a", "x").mode(0o4755)},
		ClassSetgid:       {dir("a").mode(0o2755)},
		ClassSticky:       {dir("a").mode(0o1755)},
		ClassWritable:     {file("a", "x").mode(0o664)},
		ClassCapabilities: {file("a", "x").record("SCHILY.xattr.security.capability", "\x01\x00\x00\x02")},
		ClassAttributes:   {file("a", "x").record("SCHILY.xattr.user.mine", "x")},
		ClassHardLink:     {file("a", "x"), hardLink("b", "a")},
		ClassDevice:       {special("null", tar.TypeChar)},
		ClassPipe:         {special("pipe", tar.TypeFifo)},
		ClassDev:          {dir("dev"), file("dev/console", "")},
		ClassPlace:        {symlink("proc", "usr")},
	}
}

// R16: what an artifact may not hold is refused by default, with advice that
// names the option, and mended and counted with it.
func TestForbiddenEntries(t *testing.T) {
	for class, entries := range forbidden() {
		t.Run(string(class), func(t *testing.T) {
			s := newStore(t)
			b := archive(t, entries...)
			_, err := s.ImportTar(t.Context(), bytes.NewReader(b), Options{})
			wantCode(t, err, CodeForbidden)
			if e := (*wire.Error)(nil); !errors.As(err, &e) || !strings.Contains(e.Advice, "--normalize") {
				t.Errorf("the advice is %q", e.Advice)
			}
			wantEmpty(t, s)
			r := imported(t, s, b, Options{Normalize: true})
			last := entries[len(entries)-1].Name
			if len(r.Changes) != 1 || r.Changes[0].Class != class || r.Changes[0].Count != 1 || r.Changes[0].First != last || r.Changes[0].Did == "" {
				t.Errorf("the changes are %+v", r.Changes)
			}
		})
	}
}

// R16: what docker export writes (an image's setuid programs, sticky /tmp,
// foreign owners, hard links, a populated /dev, .dockerenv) imports with
// normalization, and every change is counted.
func TestDockerExport(t *testing.T) {
	s := newStore(t)
	r := imported(t, s, archive(t,
		file(".dockerenv", "").mode(0o755), symlink("bin", "usr/bin"),
		dir("dev/"), file("dev/console", "").mode(0o755), dir("dev/pts/"), dir("dev/shm/"),
		dir("etc/"), symlink("etc/mtab", "/proc/mounts"), file("etc/hosts", "").mode(0o755),
		dir("home/"), dir("home/node/").owned(1000, 1000), file("home/node/.profile", "x").owned(1000, 1000),
		dir("proc/"), dir("sys/"), dir("tmp/").mode(0o1777), dir("run/"), dir("run/lock/").mode(0o1777),
		dir("usr/"), dir("usr/bin/"), file("usr/bin/su", "su").mode(0o4755), file("usr/bin/perl", "perl").mode(0o755), hardLink("usr/bin/perl5", "usr/bin/perl"),
		dir("var/"), dir("var/local/").mode(0o2775),
	), Options{Normalize: true})
	got := map[Class]int{}
	for _, c := range r.Changes {
		got[c.Class] = c.Count
	}
	want := map[Class]int{ClassDocker: 1, ClassDev: 3, ClassOwner: 2, ClassSticky: 2, ClassWritable: 3, ClassSetuid: 1, ClassSetgid: 1, ClassHardLink: 1}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the changes are %v, want %v", got, want)
	}
	if want := []string{"/workspace", "/home/agent", "/attachments"}; !slices.Equal(r.Made, want) {
		t.Errorf("made %q, want %q", r.Made, want)
	}
	for name, content := range map[string]string{"usr/bin/su": "su", "usr/bin/perl5": "perl", "home/node/.profile": "x"} {
		b, err := os.ReadFile(s.tree(r, name))
		st, statErr := os.Lstat(s.tree(r, name))
		if err != nil || string(b) != content || statErr != nil || st.Mode()&(os.ModeSetuid|0o022) != 0 {
			t.Errorf("%s is %q, %v, %v", name, b, st, err)
		}
	}
	if to, err := os.Readlink(s.tree(r, "etc/mtab")); err != nil || to != "/proc/mounts" {
		t.Errorf("etc/mtab leads to %q, %v", to, err)
	}
	if in, err := os.ReadDir(s.tree(r, "dev")); err != nil || len(in) != 0 {
		t.Errorf("/dev holds %v, %v", in, err)
	}
}

// Spellings of other programs: "./" in front, gzip, zeros behind, a root with
// a mode of its own. They change no digest.
func TestSpellings(t *testing.T) {
	s := newStore(t)
	plain := archive(t, dir("usr"), file("usr/a", "x"), symlink("b", "usr/a"))
	want := imported(t, s, plain, Options{})
	for name, b := range map[string][]byte{
		"again":         plain,
		"dots":          archive(t, dir("./"), dir("./usr/"), file("./usr/a", "x"), symlink("./b", "usr/a")),
		"gzip":          compress(t, plain),
		"two members":   append(compress(t, plain[:700]), compress(t, plain[700:])...),
		"padded":        append(bytes.Clone(plain), make([]byte, 9<<10)...),
		"another order": archive(t, symlink("b", "usr/a"), dir("usr"), file("usr/a", "x"), dir("./")),
		"mount points":  archive(t, dir("usr"), file("usr/a", "x"), symlink("b", "usr/a"), dir("home"), dir("home/agent"), dir("proc")),
	} {
		if got := imported(t, s, b, Options{}); got.Digest != want.Digest || !got.AlreadyPresent {
			t.Errorf("%s: %s, already present %v, want %s", name, got.Digest, got.AlreadyPresent, want.Digest)
		}
	}
	if root := imported(t, s, archive(t, dir("./").mode(0o700), dir("usr"), file("usr/a", "x"), symlink("b", "usr/a")), Options{}); root.Digest == want.Digest {
		t.Error("the root's mode is not part of the digest")
	}
}

// R16 R80: importing the same again changes nothing and says so; one that was
// damaged meanwhile is no success; what is wanted must be what comes.
func TestImportAgain(t *testing.T) {
	s := newStore(t)
	b := archive(t, file("a", "x"))
	first := imported(t, s, b, Options{})
	if first.AlreadyPresent {
		t.Error("the first import says that it is there already")
	}
	before, err := os.Stat(s.tree(first, "a"))
	must(t, err)
	if again := imported(t, s, b, Options{Digest: first.Digest}); !again.AlreadyPresent || again.Digest != first.Digest {
		t.Errorf("got %+v", again)
	}
	if after, err := os.Stat(s.tree(first, "a")); err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was replaced: %v", err)
	}
	_, err = s.ImportTar(t.Context(), bytes.NewReader(archive(t, file("a", "y"))), Options{Digest: first.Digest})
	wantCode(t, err, wire.CodeArtifactMismatch)
	must(t, os.WriteFile(s.tree(first, "a"), []byte("z"), 0o644))
	_, err = s.ImportTar(t.Context(), bytes.NewReader(b), Options{})
	wantCode(t, err, wire.CodeArtifactMismatch)
	wantCode(t, s.Verify(t.Context(), first.Digest, nil), wire.CodeArtifactMismatch)
	all, err := s.List()
	if err != nil || len(all) != 1 {
		t.Errorf("the list is %+v, %v", all, err)
	}
}

// The store and what is in it are root's alone; times of files are kept.
func TestStored(t *testing.T) {
	s := newStore(t)
	old := unix.Umask(0)
	f := file("a", "x")
	f.ModTime = time.Unix(1_000_000_000, 0)
	r := imported(t, s, archive(t, f), Options{})
	unix.Umask(old)
	for _, dir := range []string{s.layout.Var, s.dir, filepath.Dir(s.Location(r.Digest).Path)} {
		if st, err := os.Stat(dir); err != nil || st.Mode() != os.ModeDir|0o700 {
			t.Errorf("%s: %v, %v", dir, st.Mode(), err)
		}
	}
	if st, err := os.Stat(s.tree(r, "")); err != nil || st.Mode() != os.ModeDir|0o755 {
		t.Errorf("the tree: %v, %v", st.Mode(), err)
	}
	if st, err := os.Stat(s.tree(r, "a")); err != nil || !st.ModTime().Equal(f.ModTime) {
		t.Errorf("a: %v, %v", st.ModTime(), err)
	}
}

// blocked is a stream that gives its bytes, says so, and then ends with the
// context.
type blocked struct {
	r       io.Reader
	reached chan struct{}
	ctx     context.Context
}

func (b *blocked) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err == io.EOF {
		close(b.reached)
		<-b.ctx.Done()
		return 0, b.ctx.Err()
	}
	return n, err
}

// R80: an import that is interrupted leaves nothing, nor does one whose source
// fails.
func TestInterruption(t *testing.T) {
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	source := &blocked{bytes.NewReader(pack(t, dir("a"), file("a/b", "x"))), make(chan struct{}), ctx}
	go func() {
		<-source.reached
		cancel()
	}()
	_, err := s.ImportTar(ctx, source, Options{})
	wantCode(t, err, CodeCancelled)
	wantEmpty(t, s)
	_, err = s.ImportTar(t.Context(), io.MultiReader(bytes.NewReader(pack(t, dir("a"))), failing{}), Options{})
	wantCode(t, err, CodeFailed)
	wantEmpty(t, s)
	_, err = s.ImportDir(ctx, t.TempDir(), Options{})
	wantCode(t, err, CodeCancelled)
	wantEmpty(t, s)
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the cable was pulled") }
