package rootfs

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// R32 R80: what a crash left, of an import or of a removal, goes with the next
// command; what another process works in stays.
func TestSweep(t *testing.T) {
	for name, next := range map[string]func(s *Store) error{
		"list": func(s *Store) error { _, err := s.List(); return err },
		"import": func(s *Store) error {
			_, err := s.ImportTar(context.Background(), bytes.NewReader(archive(t)), Options{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			must(t, s.prepare())
			for _, prefix := range []string{".import-", ".remove-"} {
				crashed, err := s.newWork(prefix)
				must(t, err)
				must(t, os.MkdirAll(crashed.path+"/tree/a/b", 0o500))
				crashed.close() // as the end of a process does
				held, err := s.newWork(prefix)
				must(t, err)
				must(t, next(s))
				if _, err := os.Lstat(crashed.path); !os.IsNotExist(err) {
					t.Errorf("%s is still there: %v", crashed.path, err)
				}
				if _, err := os.Lstat(held.path); err != nil {
					t.Errorf("what is in use was removed: %v", err)
				}
				must(t, held.remove())
				held.close()
			}
		})
	}
}

// Imports, lists and removals at the same time don't disturb each other: each
// import succeeds, one of those of the same tree makes it, and nothing stays.
func TestAtTheSameTime(t *testing.T) {
	s := newStore(t)
	s.flush = noFlush
	b := archive(t, dir("usr"), file("usr/a", strings.Repeat("x", 10_000)))
	var all sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for range 8 {
		all.Go(func() {
			r, err := s.ImportTar(context.Background(), bytes.NewReader(b), Options{})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if !r.AlreadyPresent {
				made++
			}
		})
		all.Go(func() {
			if _, err := s.List(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made != 1 {
		t.Errorf("%d imports say that they made it", made)
	}
	list, err := s.List()
	if err != nil || len(list) != 1 || list[0].Err != nil || list[0].Bytes != 10_000 {
		t.Fatalf("the list is %+v, %v", list, err)
	}
	must(t, s.Remove(list[0].Digest))
	wantEmpty(t, s)
}

// A list of nothing is empty and makes nothing; what is damaged is listed with
// what is wrong.
func TestList(t *testing.T) {
	s := newStore(t)
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("got %v, %v", list, err)
	}
	if _, err := os.Lstat(s.layout.Var); !os.IsNotExist(err) {
		t.Errorf("a list made something: %v", err)
	}
	r := imported(t, s, archive(t, file("a", "x")), Options{})
	must(t, os.Chmod(s.tree(r, ""), 0o777))
	list, err := s.List()
	must(t, err)
	if len(list) != 1 {
		t.Fatalf("got %+v", list)
	}
	wantCode(t, list[0].Err, wire.CodeArtifactMismatch)
	must(t, os.Chmod(s.tree(r, ""), 0o755))
	must(t, os.Remove(s.Location(r.Digest).Manifest))
	if list, err = s.List(); err != nil || len(list) != 1 || list[0].Err == nil {
		t.Errorf("got %+v, %v", list, err)
	}
	must(t, s.Remove(r.Digest)) // also a damaged one
	wantEmpty(t, s)
}

// R80: the beginning of a digest is enough, if only one begins so.
func TestFind(t *testing.T) {
	s := newStore(t)
	one := imported(t, s, archive(t, file("a", "x")), Options{})
	imported(t, s, archive(t, file("a", "y")), Options{})
	for _, prefix := range []string{one.Digest, one.Digest[:20], one.Digest[len(scheme):], one.Digest[len(scheme):][:10]} {
		if got, err := s.Find(prefix); err != nil || got != one.Digest {
			t.Errorf("%q finds %q, %v", prefix, got, err)
		}
	}
	for _, prefix := range []string{"", scheme, "sha256:zz", "../" + one.Digest, one.Digest + "0"} {
		_, err := s.Find(prefix)
		wantCode(t, err, wire.CodeRootfsMissing)
	}
}

// R32 R80: what is mounted, in our mount namespace or in another one, or holds
// a mount, is not removed.
func TestRemoveRefusesWhatIsUsed(t *testing.T) {
	s := newStore(t)
	r := imported(t, s, archive(t, dir("usr")), Options{})
	tree := s.tree(r, "")
	at := filepath.Join(tempDir(t), "pin")
	must(t, os.Mkdir(at, 0o755))
	refused := func(what string) {
		t.Helper()
		err := s.Remove(r.Digest)
		if err == nil {
			t.Fatalf("%s: it was removed", what)
		}
		wantCode(t, err, CodeInUse)
		if _, err := os.Lstat(tree + "/usr"); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, mounted := range []string{at, tree + "/usr"} {
			_ = unix.Unmount(mounted, unix.MNT_DETACH) // there only if the test failed
		}
	})
	must(t, unix.Mount(tree, at, "", unix.MS_BIND, ""))
	refused("a mount of it")
	must(t, unix.Unmount(at, unix.MNT_DETACH))
	must(t, unix.Mount("tmpfs", tree+"/usr", "tmpfs", 0, "size=1m"))
	refused("a mount in it")
	must(t, unix.Unmount(tree+"/usr", unix.MNT_DETACH))

	// A process in a mount namespace of its own, as a gofer is.
	child := exec.Command("unshare", "-m", "sh", "-c", `mount --bind "$1" "$2" && echo mounted && read line`, "sh", tree, at)
	in, err := child.StdinPipe()
	must(t, err)
	out, err := child.StdoutPipe()
	must(t, err)
	must(t, child.Start())
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Error(err)
	}
	refused("a mount in another namespace")
	must(t, in.Close())
	if err := child.Wait(); err == nil {
		t.Log("the child read a line that nobody wrote")
	}
	// Another process may have copied our mounts into a namespace of its own a
	// moment ago, and drops them.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := s.Remove(r.Digest)
		if err == nil {
			break
		}
		if wire.CodeOf(err) != CodeInUse || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	wantEmpty(t, s)
}

// R16: a store that someone else owns is not used.
func TestStoreOfOthers(t *testing.T) {
	rootonly.Test(t)
	s := newStore(t)
	must(t, os.MkdirAll(s.dir, 0o700))
	must(t, os.Chown(s.dir, 1000, 1000))
	_, err := s.ImportTar(t.Context(), bytes.NewReader(archive(t)), Options{})
	wantCode(t, err, wire.CodeInvalidConfig)
}
