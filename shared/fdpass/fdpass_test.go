package fdpass

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair makes both ends as connections, with a deadline on everything.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	a, fd, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	b, err = Adopt(fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	for _, c := range []*net.UnixConn{a, b} {
		if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

func pipe(t *testing.T, flags int) (r, w int) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|flags); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { CloseAll(fds[:]) })
	return fds[0], fds[1]
}

// checkLeak fails when the function leaves a descriptor open, or closes one
// that it did not open.
func checkLeak(t *testing.T, f func()) {
	t.Helper()
	before := openDescriptors(t)
	f()
	after := openDescriptors(t)
	if !slices.Equal(before, after) {
		t.Errorf("descriptors before %v, after %v", before, after)
	}
}

func openDescriptors(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil {
			all = append(all, e.Name()+" "+target)
		}
	}
	return all
}

func flag(t *testing.T, fd, command int) int {
	t.Helper()
	v, err := unix.FcntlInt(uintptr(fd), command, 0)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// R3: a packet brings its payload and descriptors in order, close-on-exec,
// and with the flags of the shared description as they were.
func TestRoundTrip(t *testing.T) {
	for _, flags := range []int{0, unix.O_NONBLOCK} {
		a, b := pair(t)
		r, w := pipe(t, flags)
		before := [2]int{flag(t, r, unix.F_GETFL), flag(t, w, unix.F_GETFL)}
		checkLeak(t, func() {
			if err := Send(a, []byte("hello"), r, w); err != nil {
				t.Fatal(err)
			}
			payload, fds, err := Receive(b, 5)
			if err != nil || string(payload) != "hello" || len(fds) != 2 {
				t.Fatalf("%q, %v, %v", payload, fds, err)
			}
			defer CloseAll(fds)
			for i, fd := range fds {
				if flag(t, fd, unix.F_GETFD)&unix.FD_CLOEXEC == 0 {
					t.Errorf("descriptor %d is not close-on-exec", i)
				}
				if got := flag(t, fd, unix.F_GETFL); got != before[i] {
					t.Errorf("flags of descriptor %d: %#x, were %#x", i, got, before[i])
				}
			}
			if _, err := unix.Write(fds[1], []byte("x")); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 2)
			if n, err := unix.Read(r, buf); err != nil || string(buf[:n]) != "x" {
				t.Errorf("%q, %v", buf[:n], err)
			}
		})
		if after := [2]int{flag(t, r, unix.F_GETFL), flag(t, w, unix.F_GETFL)}; after != before {
			t.Errorf("flags after: %#x, before: %#x", after, before)
		}
	}
}

// Packets keep their bounds.
func TestPacketsAreSeparate(t *testing.T) {
	a, b := pair(t)
	for _, s := range []string{"one", "two"} {
		if err := Send(a, []byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"one", "two"} {
		if got, fds, err := Receive(b, 64); err != nil || string(got) != want || fds != nil {
			t.Errorf("%q, %v, %v", got, fds, err)
		}
	}
}

func TestMostDescriptors(t *testing.T) {
	a, b := pair(t)
	r, _ := pipe(t, unix.O_NONBLOCK)
	fds := make([]int, MaxDescriptors)
	for i := range fds {
		fds[i] = r
	}
	checkLeak(t, func() {
		if err := Send(a, bytes.Repeat([]byte("x"), 64<<10), fds...); err != nil {
			t.Fatal(err)
		}
		payload, got, err := Receive(b, 64<<10)
		if err != nil || len(payload) != 64<<10 || len(got) != MaxDescriptors {
			t.Fatalf("%d bytes, %v, %v", len(payload), got, err)
		}
		CloseAll(got)
	})
}

// Whatever is wrong with a packet, nothing of it stays open, and the next
// packet is read.
func TestRefusedPacketsLeaveNothingOpen(t *testing.T) {
	r, w := pipe(t, unix.O_NONBLOCK)
	many := make([]int, 253)
	for i := range many {
		many[i] = r
	}
	tests := []struct {
		name    string
		payload []byte
		oob     []byte
		want    error
	}{
		{"a byte too long", []byte("123456789"), unix.UnixRights(r, w), ErrTruncated},
		{"one descriptor too many", []byte("x"), unix.UnixRights(many[:MaxDescriptors+1]...), ErrTruncated},
		{"as many as the kernel allows", []byte("x"), unix.UnixRights(many...), ErrTruncated},
		{"empty with descriptors", nil, unix.UnixRights(r, w), ErrEmpty},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a, b := pair(t)
			checkLeak(t, func() {
				sendRaw(t, a, test.payload, test.oob)
				payload, fds, err := Receive(b, 8)
				if !errors.Is(err, test.want) || payload != nil || fds != nil {
					t.Errorf("%q, %v, %v", payload, fds, err)
				}
				if err := Send(a, []byte("next")); err != nil {
					t.Fatal(err)
				}
				if payload, _, err := Receive(b, 8); err != nil || string(payload) != "next" {
					t.Errorf("the next packet: %q, %v", payload, err)
				}
			})
		})
	}
}

// sendRaw sends what Send would not.
func sendRaw(t *testing.T, c *net.UnixConn, payload, oob []byte) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var sendErr error
	if err := raw.Control(func(fd uintptr) { sendErr = sendmsg(int(fd), payload, oob) }); err != nil || sendErr != nil {
		t.Fatal(err, sendErr)
	}
}

// A socket that asks for more than descriptors gets them, and the packet is
// refused with all that came along: credentials, and the sender's pidfd.
func TestOtherControlDataIsRefused(t *testing.T) {
	const soPassPIDFD = 76 // asm-generic/socket.h
	for name, option := range map[string]int{"credentials": unix.SO_PASSCRED, "pidfd": soPassPIDFD} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			r, w := pipe(t, unix.O_NONBLOCK)
			set(t, b, option)
			checkLeak(t, func() {
				if err := Send(a, []byte("x"), r, w); err != nil {
					t.Fatal(err)
				}
				if payload, fds, err := Receive(b, 8); !errors.Is(err, ErrControl) || payload != nil || fds != nil {
					t.Errorf("%q, %v, %v", payload, fds, err)
				}
			})
		})
	}
}

func set(t *testing.T, c *net.UnixConn, option int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var optErr error
	if err := raw.Control(func(fd uintptr) { optErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, option, 1) }); err != nil {
		t.Fatal(err)
	}
	if optErr == unix.ENOPROTOOPT {
		t.Logf("this kernel has no socket option %d", option)
		set(t, c, unix.SO_PASSCRED)
		return
	}
	if optErr != nil {
		t.Fatal(optErr)
	}
}

func TestSendRefuses(t *testing.T) {
	a, _ := pair(t)
	if err := Send(a, nil); !errors.Is(err, ErrEmpty) {
		t.Errorf("an empty packet: %v", err)
	}
	if err := Send(a, []byte("x"), make([]int, MaxDescriptors+1)...); err == nil {
		t.Error("too many descriptors were sent")
	}
	if err := Send(a, []byte("x"), -1); !errors.Is(err, unix.EBADF) {
		t.Errorf("a descriptor that is not open: %v", err)
	}
}

func TestEnd(t *testing.T) {
	a, b := pair(t)
	if err := Send(a, []byte("last")); err != nil {
		t.Fatal(err)
	}
	a.Close()
	if payload, _, err := Receive(b, 8); err != nil || string(payload) != "last" {
		t.Errorf("%q, %v", payload, err)
	}
	if _, _, err := Receive(b, 8); err != io.EOF {
		t.Errorf("the end is %v", err)
	}
	if err := Send(b, []byte("x")); !errors.Is(err, unix.EPIPE) {
		t.Errorf("sending to nobody: %v", err)
	}
}

func TestDeadlines(t *testing.T) {
	a, b := pair(t)
	past := time.Now().Add(-time.Second)
	if err := b.SetReadDeadline(past); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Receive(b, 8); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("receiving: %v", err)
	}
	if err := a.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var err error
	for sent := 0; err == nil && sent < 1<<20; sent++ {
		err = Send(a, []byte("nobody reads this"))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("sending into a full socket: %v", err)
	}
}

func TestReceiveNeedsRoom(t *testing.T) {
	_, b := pair(t)
	if _, _, err := Receive(b, 0); err == nil || err == io.EOF {
		t.Errorf("a packet of at most no bytes: %v", err)
	}
}

// Both ends are non-blocking and close-on-exec.
func TestPairFlags(t *testing.T) {
	a, fd, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer unix.Close(fd)
	check := func(fd int) {
		if flag(t, fd, unix.F_GETFL)&unix.O_NONBLOCK == 0 || flag(t, fd, unix.F_GETFD)&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d blocks or survives exec", fd)
		}
	}
	check(fd)
	raw, err := a.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { check(int(fd)) }); err != nil {
		t.Fatal(err)
	}
}

// Adopt owns the descriptor also when it refuses it.
func TestAdoptRefuses(t *testing.T) {
	checkLeak(t, func() {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, fd := range fds {
				if c, err := Adopt(fd); err == nil {
					c.Close()
					t.Errorf("a socket of type %d was adopted", kind)
				}
			}
		}
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if _, err := Adopt(fd); !errors.Is(err, unix.ENOTSOCK) {
				t.Errorf("a pipe: %v", err)
			}
		}
	})
}
