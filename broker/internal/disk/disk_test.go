package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/workspace"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

const testTimeout = 60 * time.Second

// place is a folder for images and mounts, like the broker's.
type place struct {
	t              testing.TB
	images, mounts string
}

func newPlace(t testing.TB) *place {
	t.Helper()
	rootonly.Test(t)
	dir := t.TempDir()
	p := &place{t: t, images: dir + "/images", mounts: dir + "/mounts"}
	if err := errors.Join(os.Mkdir(p.images, 0o700), os.Mkdir(p.mounts, 0o700), workspace.PreparePinRoot(p.mounts)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left, _ := filepath.Glob(p.images + "/*"); len(left) > 0 {
			for _, image := range left {
				p.remove(filepath.Base(image))
			}
		}
		if left := p.devices(); len(left) > 0 {
			t.Errorf("loop devices are left: %v", left)
		}
		if err := workspace.ReleasePinRoot(p.mounts); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *place) paths(name string) (image, target string) {
	return p.images + "/" + name, p.mounts + "/" + name + ".home"
}

func (p *place) mount(i *Images, name string, size int64) (target string) {
	p.t.Helper()
	image, target := p.paths(name)
	if err := i.Mount(p.t.Context(), image, target, size); err != nil {
		p.t.Fatal(err)
	}
	return target
}

func (p *place) remove(name string) {
	p.t.Helper()
	image, target := p.paths(name)
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	for range 2 {
		if err := errors.Join(workspace.Unpin(target), Remove(ctx, image)); err != nil {
			p.t.Fatal(err)
		}
	}
	for _, path := range []string{image, target} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			p.t.Errorf("%s is still there: %v", path, err)
		}
	}
}

// devices returns the loop devices of the place's images.
func (p *place) devices() []string {
	all, _ := filepath.Glob(blockDevices + "/loop*/loop/backing_file")
	var left []string
	for _, path := range all {
		if b, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(b), p.images+"/") {
			left = append(left, path)
		}
	}
	return left
}

// fill writes a file until it fails, and returns how much it holds.
func fill(path string) (int64, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	chunk := bytes.Repeat([]byte("full"), 64<<10/4)
	var n int64
	for {
		k, err := f.Write(chunk)
		n += int64(k)
		if err != nil {
			return n, err
		}
	}
}

// allocated is what a file takes from its disk, in bytes.
func allocated(t testing.TB, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// R34, R32: a home ends at its size, takes from the host what it holds, gives
// back what is removed, is mounted as promised, and goes without a trace.
func TestHome(t *testing.T) {
	p := newPlace(t)
	var images Images
	const size = 64 << 20
	home := p.mount(&images, "one", size)
	image, _ := p.paths("one")
	if st, err := os.Stat(image); err != nil || st.Mode().Perm() != 0o600 || st.Size() != size {
		t.Errorf("the image: %v, %v", st, err)
	}
	if n := allocated(t, image); n > 1<<20 {
		t.Errorf("an empty home takes %d bytes", n)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(home, &fs); err != nil || fs.Flags&(unix.ST_NOSUID|unix.ST_NODEV|unix.ST_NOATIME) != unix.ST_NOSUID|unix.ST_NODEV|unix.ST_NOATIME {
		t.Errorf("flags %#x, %v", fs.Flags, err)
	}
	n, err := fill(home + "/file")
	if !errors.Is(err, unix.ENOSPC) || n < size*9/10 || n > size {
		t.Errorf("%d bytes fit into %d: %v", n, size, err)
	}
	syncFS(t, home)
	if got := allocated(t, image); got < n || got > size {
		t.Errorf("%d bytes take %d", n, got)
	}
	if err := os.Remove(home + "/file"); err != nil {
		t.Fatal(err)
	}
	syncFS(t, home)
	for deadline := time.Now().Add(testTimeout); allocated(t, image) > 2<<20; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("an emptied home still takes %d bytes", allocated(t, image))
		}
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, " "+home+" ") && (strings.Contains(line, "shared:") || strings.Contains(line, "master:")) {
			t.Errorf("it propagates: %s", line)
		}
	}
	p.remove("one")
}

func syncFS(t testing.TB, path string) {
	t.Helper()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		t.Fatal(err)
	}
}

// R34: a home that is full of files is full, whatever is in them, and the one
// beside it is not.
func TestInodesEnd(t *testing.T) {
	p := newPlace(t)
	var images Images
	full, beside := p.mount(&images, "full", MinSize), p.mount(&images, "beside", MinSize)
	var err error
	for i := 0; err == nil && i < MinSize/4096; i++ {
		err = os.WriteFile(fmt.Sprintf("%s/%d", full, i), nil, 0o600)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a home of %d bytes holds as many files: %v", MinSize, err)
	}
	if err := os.WriteFile(beside+"/file", make([]byte, 8<<20), 0o600); err != nil {
		t.Errorf("the home beside it: %v", err)
	}
}

// R6: before Linux 5.8 a device is set up in two steps.
func TestOldKernel(t *testing.T) {
	p := newPlace(t)
	configure = func(int, *unix.LoopConfig) error { return unix.EINVAL }
	defer func() { configure = unix.IoctlLoopConfigure }()
	var images Images
	home := p.mount(&images, "old", MinSize)
	if err := os.WriteFile(home+"/file", []byte("x"), 0o600); err != nil {
		t.Error(err)
	}
	// It goes with its last user, without Remove.
	if err := unix.Unmount(home, 0); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(testTimeout); len(p.devices()) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the device outlives its mount")
		}
	}
	p.remove("old")
}

// R32: whatever a broker that died has left, Remove takes, and nothing of
// anybody else's: an image without a device, one that is attached and not
// mounted, with nothing to make it go by itself, and one that was removed.
func TestRemoveAfterACrash(t *testing.T) {
	p := newPlace(t)
	var images Images
	other := p.mount(&images, "other", MinSize)
	p.remove("never")
	image, _ := p.paths("half")
	attachOnly := func() {
		if err := os.WriteFile(image, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), "losetup", "--find", image).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	attachOnly()
	p.remove("half")
	attachOnly()
	if err := os.Remove(image); err != nil {
		t.Fatal(err)
	}
	p.remove("half")
	if err := os.WriteFile(other+"/file", []byte("x"), 0o600); err != nil {
		t.Errorf("the other home: %v", err)
	}
	if n := len(p.devices()); n != 1 {
		t.Errorf("%d devices are left, not the other's one", n)
	}
}

// R32: a home in use is not removed, and can be later.
func TestRemoveWaits(t *testing.T) {
	p := newPlace(t)
	var images Images
	home := p.mount(&images, "busy", MinSize)
	image, _ := p.paths("busy")
	f, err := os.Create(home + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := workspace.Unpin(home); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Remove(ctx, image); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a home in use: %v", err)
	}
	if _, err := os.Stat(image); err != nil {
		t.Errorf("its image: %v", err)
	}
	f.Close()
	p.remove("busy")
}

// R32: services that the host starts meanwhile copy our mounts into namespaces
// of their own. They don't keep an image.
func TestCopiesOfTheMountGo(t *testing.T) {
	p := newPlace(t)
	var images Images
	home := p.mount(&images, "copied", MinSize)
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "slave", "sh", "-c", "echo ready && exec sleep 1000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", cmd.Process.Pid)); err != nil || !strings.Contains(string(b), home) {
		t.Fatalf("there is no copy, the test tests nothing: %v", err)
	}
	p.remove("copied")
}

// Many at once get a device each.
func TestManyAtOnce(t *testing.T) {
	p := newPlace(t)
	var images Images
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			name := fmt.Sprint(i)
			image, home := p.paths(name)
			if err := images.Mount(t.Context(), image, home, MinSize); err != nil {
				t.Error(err)
			} else if err := os.WriteFile(home+"/name", []byte(name), 0o600); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i := range 12 {
		name := fmt.Sprint(i)
		if _, home := p.paths(name); !t.Failed() {
			if b, err := os.ReadFile(home + "/name"); err != nil || string(b) != name {
				t.Errorf("home %d holds %q, %v", i, b, err)
			}
		}
		p.remove(name)
	}
}

// R71: what is missing is named, and nothing is made.
func TestUnavailable(t *testing.T) {
	p := newPlace(t)
	image, home := p.paths("none")
	for name, c := range map[string]struct {
		size     int64
		programs []string
	}{
		"no program":      {MinSize, []string{p.images + "/none"}},
		"another program": {MinSize, []string{"/bin/false"}},
		"too small":       {MinSize - 1, programs},
		"too large":       {1 << 62, programs},
	} {
		t.Run(name, func(t *testing.T) {
			defer func(before []string) { programs = before }(programs)
			programs = c.programs
			var images Images
			err := images.Mount(t.Context(), image, home, c.size)
			var e *wire.Error
			if !errors.As(err, &e) || e.Code != wire.CodeDiskUnavailable || e.Advice == "" {
				t.Errorf("got %v", err)
			}
			if strings.Contains(e.Message+e.Advice, p.images) {
				t.Errorf("the error names a path: %v", e.Message)
			}
		})
	}
	if left, _ := filepath.Glob(p.images + "/*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func BenchmarkHome(b *testing.B) {
	p := newPlace(b)
	var images Images
	for b.Loop() {
		p.mount(&images, "bench", 1<<30)
		image, target := p.paths("bench")
		if err := errors.Join(workspace.Unpin(target), Remove(b.Context(), image)); err != nil {
			b.Fatal(err)
		}
	}
}
