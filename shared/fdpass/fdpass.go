package fdpass

import (
	"encoding/binary"
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

// Errors of Receive. All descriptors that did arrive have been closed.
var (
	// ErrTruncated: the packet or its control data did not fit.
	ErrTruncated = errors.New("fdpass: the packet or its descriptors were truncated")
	// ErrEmpty: the packet has descriptors and no payload.
	ErrEmpty = errors.New("fdpass: the packet has no payload")
	// ErrControl: the packet carries control data that is not descriptors.
	ErrControl = errors.New("fdpass: the packet carries control data other than descriptors")
)

// scmPIDFD is the control message that SO_PASSPIDFD asks for (Linux 6.5,
// include/linux/socket.h); it holds one descriptor.
const scmPIDFD = 4

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

// Adopt takes ownership of a packet socket's descriptor, also when it fails,
// and makes it non-blocking. The connection has a duplicate of it, with another
// number and close-on-exec.
func Adopt(fd int) (*net.UnixConn, error) {
	if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_SEQPACKET {
		unix.Close(fd)
		if err == nil {
			err = errors.New("not a packet socket")
		}
		return nil, fmt.Errorf("adopt socket: %w", err)
	}
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
// duplicates. The payload is not empty: an empty packet looks like the end of
// the connection. The connection's write deadline applies.
func Send(c *net.UnixConn, payload []byte, fds ...int) error {
	if len(payload) == 0 {
		return ErrEmpty
	}
	if len(fds) > MaxDescriptors {
		return fmt.Errorf("fdpass: %d descriptors, the limit is %d", len(fds), MaxDescriptors)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := c.WriteMsgUnix(payload, oob, nil); err != nil {
		return fmt.Errorf("fdpass: send: %w", err)
	}
	return nil
}

// Receive reads one packet of at most max bytes with its descriptors, which
// are close-on-exec and the caller's from then on. It returns io.EOF when the
// peer has closed; ErrTruncated when the packet is longer than max or carries
// more than MaxDescriptors; ErrEmpty and ErrControl for packets that Send does
// not make. After any error nothing is left open. The connection's read
// deadline applies.
func Receive(c *net.UnixConn, max int) (payload []byte, fds []int, err error) {
	if max < 1 {
		return nil, nil, fmt.Errorf("fdpass: a packet of at most %d bytes can't be read", max)
	}
	buf := make([]byte, max)
	// There is room for what ErrControl refuses, so that it is not taken for
	// too many descriptors.
	oob := make([]byte, unix.CmsgSpace(MaxDescriptors*4)+unix.CmsgSpace(unix.SizeofUcred)+unix.CmsgSpace(4))
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob)
	// The net package reports an empty packet as io.EOF. It may bring
	// descriptors all the same, so control data is looked at first.
	fds, controlErr := rights(oob[:oobn])
	switch {
	case controlErr != nil:
		err = controlErr
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(fds) > MaxDescriptors:
		err = ErrTruncated
	case errors.Is(err, io.EOF) && len(fds) > 0:
		err = ErrEmpty
	case errors.Is(err, io.EOF):
		err = io.EOF
	case err != nil:
		err = fmt.Errorf("fdpass: receive: %w", err)
	}
	if err != nil {
		CloseAll(fds)
		return nil, nil, err
	}
	return buf[:n], fds, nil
}

// rights returns all descriptors of the control data, also with an error.
func rights(oob []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("fdpass: control data: %w", err)
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS {
			err = ErrControl
		}
		if m.Header.Level == unix.SOL_SOCKET && (m.Header.Type == unix.SCM_RIGHTS || m.Header.Type == scmPIDFD) {
			for data := m.Data; len(data) >= 4; data = data[4:] {
				fds = append(fds, int(int32(binary.NativeEndian.Uint32(data))))
			}
		}
	}
	return fds, err
}

// CloseAll closes raw descriptors that the caller owns.
func CloseAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
