package peercred

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// childSocket tells a second run of the test binary to connect to this socket
// and stay until it ends.
const childSocket = "PEERCRED_TEST_SOCKET"

func TestMain(m *testing.M) {
	if path := os.Getenv(childSocket); path != "" {
		os.Exit(child(path))
	}
	os.Exit(m.Run())
}

func child(path string) int {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer c.Close()
	if _, err := io.Copy(io.Discard, c); err != nil {
		return 1
	}
	return 0
}

func listen(t *testing.T) *net.UnixListener {
	t.Helper()
	name := fmt.Sprintf("@peercred-test-%d-%s", os.Getpid(), t.Name())
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if err := l.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return l
}

func accept(t *testing.T, l *net.UnixListener) Peer {
	t.Helper()
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	p, err := Of(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// R11: nobody is not root.
func TestZeroPeerIsNobody(t *testing.T) {
	var p Peer
	for _, uid := range []uint32{0, 1, 1000, 65534, 1<<32 - 1} {
		if p.Is(uid) {
			t.Errorf("nobody is %d", uid)
		}
	}
	if p.Known() || p.UID() != 1<<32-1 || p.GID() != 1<<32-1 || p.PID() != 0 {
		t.Errorf("%+v", p)
	}
}

// R11: what the kernel says of nobody is nobody; root is told apart from it.
func TestOddUsers(t *testing.T) {
	for uid, known := range map[uint32]bool{0: true, 1: true, 65533: true, 65534: false, 65535: true, 1<<31 - 1: true, 1 << 31: true, 1<<32 - 2: true, 1<<32 - 1: false} {
		p := from(&unix.Ucred{Pid: 7, Uid: uid, Gid: 8})
		if p.Known() != known || p.Is(uid) != known || p.Is(0) != (uid == 0) || known && (p.UID() != uid || p.GID() != 8 || p.PID() != 7) || !known && p != (Peer{}) {
			t.Errorf("uid %d: %+v", uid, p)
		}
	}
}

func TestOwnProcess(t *testing.T) {
	l := listen(t)
	c, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := accept(t, l)
	if !p.Known() || !p.Is(uint32(os.Geteuid())) || p.GID() != uint32(os.Getegid()) || p.PID() != uint32(os.Getpid()) {
		t.Errorf("%+v", p)
	}
}

// start runs the test binary as another user, connected to the listener.
func start(t *testing.T, l *net.UnixListener, uid, gid uint32) (pid int) {
	t.Helper()
	// /proc/self/exe needs no way through the folders above the binary.
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childSocket+"="+l.Addr().String())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if uid != uint32(os.Geteuid()) {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		for s := bufio.NewScanner(stderr); s.Scan(); {
			t.Log("child: ", s.Text())
		}
		cmd.Wait()
	})
	return cmd.Process.Pid
}

// R11: the kernel names the user of the other process, whatever it says.
func TestOtherUsers(t *testing.T) {
	others := []struct {
		uid, gid uint32
		known    bool
	}{{12345, 54321, true}, {65533, 65533, true}, {65534, 65534, false}}
	if os.Geteuid() != 0 {
		// Without root a process of another user can't be made; the same user
		// in another process is what remains.
		others = others[:1]
		others[0].uid, others[0].gid = uint32(os.Geteuid()), uint32(os.Getegid())
	}
	for _, o := range others {
		t.Run(fmt.Sprint(o.uid), func(t *testing.T) {
			l := listen(t)
			pid := start(t, l, o.uid, o.gid)
			p := accept(t, l)
			if p.Known() != o.known || p.Is(o.uid) != o.known {
				t.Fatalf("%+v", p)
			}
			if o.uid != 0 && p.Is(0) {
				t.Errorf("%d is root", o.uid)
			}
			if o.known && (p.UID() != o.uid || p.GID() != o.gid || p.PID() != uint32(pid)) {
				t.Errorf("%+v, want %d, %d, %d", p, o.uid, o.gid, pid)
			}
		})
	}
}

// A peer stays who it was when it connected, also after it has gone.
func TestPeerThatHasGone(t *testing.T) {
	l := listen(t)
	c, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if p := accept(t, l); !p.Is(uint32(os.Geteuid())) {
		t.Errorf("%+v", p)
	}
}

// R11: a socket that is connected to no one has no peer.
func TestUnconnectedSocket(t *testing.T) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "socket")
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p, err := Of(c.(*net.UnixConn))
	if err != nil || p.Known() || p.Is(0) {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestClosedConnection(t *testing.T) {
	l := listen(t)
	c, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if p, err := Of(c); err == nil || p.Known() {
		t.Errorf("%+v, %v", p, err)
	}
}
