package fdpass

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// MaxDescriptors is the largest number of descriptors in one packet. The
// kernel's own limit is 253 (SCM_MAX_FD).
const MaxDescriptors = 32

// ErrTruncated is returned when a packet or its control data did not fit. All
// descriptors that did arrive have been closed.
var ErrTruncated = errors.New("fdpass: the packet or its descriptors were truncated")

// Pair makes a connected pair of packet sockets, both non-blocking and
// close-on-exec. The caller owns both: local by Close, remote as a raw
// descriptor, usually for a child process.
func Pair() (local *net.UnixConn, remote int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("socketpair: %w", err)
	}
	local, err = Adopt(fds[0])
	if err != nil {
		unix.Close(fds[1])
		return nil, -1, err
	}
	return local, fds[1], nil
}

// Adopt takes ownership of a packet socket's descriptor, also when it fails.
func Adopt(fd int) (*net.UnixConn, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("adopt socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "fdpass")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("adopt socket: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("adopt socket: not a Unix socket")
	}
	return u, nil
}

// Send sends one packet. The descriptors stay the caller's; the receiver gets
// duplicates. The connection's write deadline applies.
func Send(c *net.UnixConn, payload []byte, fds ...int) error {
	if len(fds) > MaxDescriptors {
		return fmt.Errorf("fdpass: %d descriptors, the limit is %d", len(fds), MaxDescriptors)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := c.WriteMsgUnix(payload, oob, nil)
	return err
}

// Receive reads one packet of at most max bytes with its descriptors, which
// are close-on-exec and the caller's from then on. It returns io.EOF when the
// peer has closed, and ErrTruncated, having closed what arrived, when the
// packet is longer than max or carries more than MaxDescriptors. The
// connection's read deadline applies.
func Receive(c *net.UnixConn, max int) (payload []byte, fds []int, err error) {
	buf := make([]byte, max)
	oob := make([]byte, unix.CmsgSpace(MaxDescriptors*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return nil, nil, err
	}
	fds, err = rights(oob[:oobn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = ErrTruncated
	}
	if err == nil && n == 0 && len(fds) == 0 {
		return nil, nil, io.EOF
	}
	if err != nil {
		CloseAll(fds)
		return nil, nil, err
	}
	return buf[:n], fds, nil
}

func rights(oob []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("fdpass: control data: %w", err)
	}
	var all []int
	for i := range messages {
		if messages[i].Header.Level != unix.SOL_SOCKET || messages[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return all, fmt.Errorf("fdpass: descriptors: %w", err)
		}
		all = append(all, fds...)
	}
	return all, nil
}

// CloseAll closes raw descriptors that the caller owns.
func CloseAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
