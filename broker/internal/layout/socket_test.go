package layout

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/trusted"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// connectTo makes the test's program connect to a socket, and say how it went.
const connectTo = "LAYOUT_TEST_SOCKET"

func TestMain(m *testing.M) {
	if path := os.Getenv(connectTo); path != "" {
		c, err := net.Dial("unix", path)
		if err == nil {
			c.Close()
		}
		var errno syscall.Errno
		errors.As(err, &errno)
		fmt.Print(int(errno))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// connect connects as a user, in another process.
func connect(t *testing.T, path string, uid uint32) syscall.Errno {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{connectTo + "=" + path, "GORACE=atexit_sleep_ms=0"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var errno int
	if _, err := fmt.Sscan(string(out), &errno); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return syscall.Errno(errno)
}

// folder makes a folder that users can walk through.
func folder(t *testing.T) string {
	t.Helper()
	rootonly.Test(t)
	dir, err := os.MkdirTemp("", "lay-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

// bind is Bind for the length of a test.
func bind(t *testing.T, path string, uids ...uint32) int {
	t.Helper()
	fd, err := Bind(path, uids)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// R11: the registered users can connect and nobody else, whoever they were
// before; and nobody before the broker listens, whatever the umask.
func TestSharedSockets(t *testing.T) {
	dir := folder(t)
	path := dir + "/s"
	old := unix.Umask(0)
	fd := bind(t, path, 1000)
	unix.Umask(old)
	if got := connect(t, path, 1002); got != unix.EACCES {
		t.Errorf("before it listens: %v", got)
	}
	if err := unix.Listen(fd, 128); err != nil {
		t.Fatal(err)
	}
	for _, uids := range [][]uint32{{1000}, {1000, 1001}, {1001, 1001}, {1001}, {0, 1000}, {1001, 0, 65533}, {}, {1<<32 - 2, 1000}, {0}} {
		if err := Share(path, uids); err != nil {
			t.Fatal(err)
		}
		_, err := unix.Getxattr(path, accessList, nil)
		if one := len(slices.Compact(slices.Clone(uids))) < 2; one != errors.Is(err, unix.ENODATA) {
			t.Errorf("the access list of a socket of %v: %v", uids, err)
		}
		for _, uid := range []uint32{0, 1000, 1001, 1002, 65533, 65534} {
			want := unix.EACCES
			if uid == 0 || slices.Contains(uids, uid) {
				want = 0
			}
			if got := connect(t, path, uid); got != want {
				t.Errorf("uid %d on a socket of %v: %v", uid, uids, got)
			}
		}
	}
}

// A folder that is renamed away and replaced by a link, between its opening
// and the binding, changes nothing: the socket is in the folder that was
// opened, and what the link leads to is untouched.
func TestSwappedFolder(t *testing.T) {
	dir := folder(t)
	for _, name := range []string{"ours", "theirs"} {
		if err := os.Mkdir(dir+"/"+name, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	theirs := bind(t, dir+"/theirs/other", 1000)
	if err := unix.Listen(theirs, 1); err != nil {
		t.Fatal(err)
	}
	opened, err := trusted.OpenDir(dir + "/ours")
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	if err := errors.Join(os.Rename(dir+"/ours", dir+"/moved"), os.Symlink("theirs", dir+"/ours")); err != nil {
		t.Fatal(err)
	}
	fd, err := bindIn(opened, "s", []uint32{1001})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := os.Lstat(dir + "/theirs/s"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is where the link leads: %v", err)
	}
	if st, err := os.Lstat(dir + "/moved/s"); err != nil || st.Mode() != os.ModeSocket|0o600 {
		t.Errorf("it is not in the folder that was opened: %v, %v", st, err)
	}
	if err := shareIn(opened, "other", []uint32{1001}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket of the other folder is shared: %v", err)
	}
	if _, err := Bind(dir+"/ours/s", []uint32{1000}); wire.CodeOf(err) != wire.CodeInvalidConfig {
		t.Errorf("a folder that is a link: %v", err)
	}
}

// A link in the place of a socket is not followed, and a file is not shared.
func TestShareRefuses(t *testing.T) {
	dir := folder(t)
	bind(t, dir+"/s", 1000)
	if err := errors.Join(os.Symlink("s", dir+"/link"), os.WriteFile(dir+"/file", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "file"} {
		if err := Share(dir+"/"+name, []uint32{1001}); wire.CodeOf(err) != wire.CodeInvalidConfig {
			t.Errorf("%s: got %v", name, err)
		}
		if st, err := os.Lstat(dir + "/" + name); err != nil || st.Sys().(*syscall.Stat_t).Uid != 0 {
			t.Errorf("%s has changed: %v", name, err)
		}
	}
	if st, err := os.Lstat(dir + "/s"); err != nil || st.Sys().(*syscall.Stat_t).Uid != 1000 {
		t.Errorf("the link was followed: %v", err)
	}
}

// Where there are no access lists, several users are refused and nothing is
// left; one user needs none.
func TestNoAccessLists(t *testing.T) {
	dir := folder(t)
	if err := unix.Mount("none", dir, "ramfs", 0, "mode=0711"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	if _, err := Bind(dir+"/s", []uint32{1000, 1001}); wire.CodeOf(err) != wire.CodeInvalidConfig || !strings.Contains(err.Error(), "access control lists") {
		t.Errorf("got %v", err)
	}
	if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	bind(t, dir+"/s", 1000)
	if err := Share(dir+"/s", []uint32{1000, 1001}); wire.CodeOf(err) != wire.CodeInvalidConfig {
		t.Errorf("got %v", err)
	}
	if err := Share(dir+"/s", nil); err != nil {
		t.Error(err)
	}
}

// The path of a socket may be longer than the kernel's address of one.
func TestLongFolder(t *testing.T) {
	dir := folder(t) + "/" + strings.Repeat("x", 150)
	if err := os.Mkdir(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	bind(t, dir+"/s", 1000)
	if st, err := os.Lstat(dir + "/s"); err != nil || st.Mode().Type() != os.ModeSocket {
		t.Errorf("got %v, %v", st, err)
	}
}

// Descriptors can't be sent to what a bound socket accepts, where the kernel
// can refuse them.
func TestRightsAreRefused(t *testing.T) {
	dir := folder(t)
	fd := bind(t, dir+"/s", 0)
	if _, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS); errors.Is(err, unix.ENOPROTOOPT) {
		return // Linux before 6.16: a read drops them
	}
	if err := unix.Listen(fd, 1); err != nil {
		t.Fatal(err)
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: dir + "/s", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// Before it is accepted.
	if _, _, err := c.WriteMsgUnix([]byte("x"), unix.UnixRights(0), nil); !errors.Is(err, unix.EPERM) {
		t.Errorf("got %v", err)
	}
}
