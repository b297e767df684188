package workspace

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// racesVariable is how many rounds a race has; without it, as many as fit into
// raceTime.
const (
	racesVariable = "PASEO_SANDBOX_RACES"
	raceTime      = 8 * time.Second
	racePatience  = 2 * time.Minute
)

// arena is a host on which others rename and mount all the time.
type arena struct {
	host
	t *testing.T
	// legitimate are the folders that are ever at the path.
	legitimate map[identity]bool
	own        string
	// turns are the racers; they begin together, when all descriptors are open.
	turns []func(i int) error
	// rounds is how often something was opened, or refused.
	rounds atomic.Int64
	// swaps is how often something was exchanged.
	swaps  atomic.Int64
	stop   chan struct{}
	racers sync.WaitGroup
}

func newArena(t *testing.T) *arena {
	h := newHost(t)
	r := &arena{host: h, t: t, legitimate: map[identity]bool{}, own: filepath.Join(h.base, "own"), stop: make(chan struct{})}
	for _, dir := range []string{
		"own", "mounted", "mounted-b/work", "a/b/work/sub",
		"spare/a-folder/b/work", "spare/b-folder/work", "spare/work-folder", "outside/a/b/work", "outside/b/work", "outside/work",
	} {
		must(t, os.MkdirAll(filepath.Join(h.base, dir), 0o755))
	}
	// Relative to where they are swapped to, so that they cross no mount.
	for name, up := range map[string]string{"a": "", "b": "../", "work": "../../"} {
		must(t, os.Symlink(up+"outside/"+name, filepath.Join(h.base, "spare", name+"-link")))
		must(t, os.WriteFile(filepath.Join(h.base, "spare", name+"-file"), nil, 0o644))
	}
	return r
}

func (r *arena) allow(paths ...string) {
	for _, p := range paths {
		r.legitimate[identify(r.t, filepath.Join(r.base, p))] = true
	}
}

func (r *arena) open(path string) int {
	r.t.Helper()
	fd, err := unix.Open(filepath.Join(r.base, path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(r.t, err)
	r.t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// race takes turns until the arena is closed. What a turn does is undone when
// it returns.
func (r *arena) race(turn func(i int) error) {
	for i := 0; ; i++ {
		select {
		case <-r.stop:
			return
		default:
			if err := turn(i); err != nil {
				r.t.Errorf("a racer stumbled: %v", err)
				return
			}
		}
	}
}

// swap exchanges the entry of a folder for another folder, a link to the
// outside and a file in turn. By descriptor: by path a racer would walk through
// another one's link, and move what is outside.
func (r *arena) swap(parent string, name string) {
	dir, spare := r.open(parent), r.open("spare")
	r.turns = append(r.turns, func(i int) error {
		// Mostly folders, or the walk would never come to the end.
		with := name + []string{"-folder", "-link", "-folder", "-file", "-folder"}[i%5]
		for range 2 {
			err := unix.EBUSY // while something is mounted on it
			for err == unix.EBUSY {
				runtime.Gosched()
				r.swaps.Add(1)
				err, _ = unix.Renameat2(dir, name, spare, with, unix.RENAME_EXCHANGE).(unix.Errno)
			}
			if err != 0 {
				return err
			}
		}
		return nil
	})
}

// cover mounts the sources on the folders in turn, and unmounts them.
func (r *arena) cover(pairs ...[2]string) {
	var on []int
	for _, p := range pairs {
		on = append(on, r.open(p[1]))
	}
	r.turns = append(r.turns, func(i int) error {
		from, to := pairs[i/2%len(pairs)], on[i/2%len(pairs)]
		clone, err := unix.OpenTree(unix.AT_FDCWD, filepath.Join(r.base, from[0]), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(clone)
		if err := unix.MoveMount(clone, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
			return fmt.Errorf("cover %s: %w", from[1], err)
		}
		if i%2 == 0 {
			r.await(&r.rounds)
		}
		err = unix.Unmount(fdPath(clone), unix.MNT_DETACH)
		if i%2 == 0 {
			r.await(&r.rounds)
		}
		return err
	})
}

// await lets a few rounds see what is, or a few exchanges happen: on few CPUs
// a thread can see the same for long.
func (r *arena) await(count *atomic.Int64) {
	for end := count.Load() + 2; count.Load() < end; runtime.Gosched() {
		select {
		case <-r.stop:
			return
		default:
		}
	}
}

// run opens and pins again and again, and checks each pin and each refusal.
func (r *arena) run(open func() (*Dir, error)) {
	t := r.t
	for _, turn := range r.turns {
		r.racers.Go(func() { r.race(turn) })
	}
	defer func() {
		close(r.stop)
		r.racers.Wait()
		if left, err := Pins(r.pins); err != nil || len(left) > 0 {
			t.Errorf("mounts left: %v, %v", left, err)
		}
	}()
	rounds, _ := strconv.Atoi(os.Getenv(racesVariable))
	pinned, refused := 0, map[wire.Code]int{}
	start := time.Now()
	more := func(i int) bool {
		if time.Since(start) > racePatience && rounds == 0 {
			return false
		}
		return i < rounds || rounds == 0 && (time.Since(start) < raceTime || pinned == 0 || len(refused) == 0)
	}
	for i := 0; more(i); i++ {
		err := r.round(open)
		r.rounds.Add(1)
		if err == nil {
			pinned++
			continue
		}
		code := wire.CodeOf(err)
		if !slices.Contains(raceCodes, code) {
			t.Fatalf("round %d: a refusal that nobody expects: %v", i, err)
		}
		if refused[code]++; refused[code]%32 == 0 {
			r.await(&r.swaps)
		}
	}
	if pinned == 0 || len(refused) == 0 {
		t.Errorf("the race did not happen: %d pinned, refused %v", pinned, refused)
	}
	t.Logf("%d pinned, refused: %v", pinned, refused)
}

// raceCodes are what the racers can cause. workspace_unresolvable: a mount is
// unmounted between the look and the clone.
var raceCodes = []wire.Code{
	wire.CodePathSymlink, wire.CodePathNotFolder, wire.CodePathMissing, wire.CodePathUnstable, wire.CodePathCrossesMount,
	wire.CodeWorkspaceHasMounts, wire.CodeWorkspaceOverlaps, wire.CodeWorkspaceUnresolvable,
}

func (r *arena) round(open func() (*Dir, error)) error {
	d, err := open()
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Apart([]string{r.own}, r.pins); err != nil {
		return err
	}
	target, err := r.pinDir(d, "one", false)
	if err != nil {
		return err
	}
	if got := identify(r.t, target); !r.legitimate[got] {
		r.t.Fatalf("the pin shows inode %d, which is none of %v", got.ino, slices.Collect(maps.Keys(r.legitimate)))
	}
	return Unpin(target)
}

// R13: while others swap the workspace and each folder above it for another
// folder, a link or a file, and mount over it, every pin shows a folder that
// was at the path; never what only a link points to, never the broker's own.
func TestRacer(t *testing.T) {
	r := newArena(t)
	r.allow("a/b/work", "spare/work-folder", "spare/b-folder/work", "spare/a-folder/b/work", "mounted", "mounted-b/work")
	r.swap("", "a")
	r.swap("a", "b")
	r.swap("a/b", "work")
	r.cover([2]string{"mounted", "a/b/work"}, [2]string{"own", "a/b/work"}, [2]string{"mounted-b", "a/b"}, [2]string{"mounted", "a/b/work/sub"})
	r.run(func() (*Dir, error) { return Open(r.root) })
}

// R13: the same below a workspace that stays: nothing that is mounted there is
// ever pinned, nor what was moved out of it before.
func TestSubRacer(t *testing.T) {
	r := newArena(t)
	r.allow("a/b/work", "spare/work-folder", "spare/b-folder/work")
	root, err := Open(filepath.Join(r.base, "a"))
	must(t, err)
	defer root.Close()
	r.swap("a", "b")
	r.swap("a/b", "work")
	r.cover([2]string{"mounted", "a/b/work"}, [2]string{"own", "a/b/work"}, [2]string{"mounted-b", "a/b"}, [2]string{"mounted", "a/b/work/sub"})
	r.run(func() (*Dir, error) { return root.Sub("b/work") })
}
