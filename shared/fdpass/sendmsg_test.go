package fdpass

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sendmsg is sendmsg(2) as the kernel has it: unix.Sendmsg puts a byte into an
// empty packet.
func sendmsg(fd int, payload, oob []byte) error {
	iov := unix.Iovec{}
	if len(payload) > 0 {
		iov.Base = &payload[0]
		iov.SetLen(len(payload))
	}
	msg := unix.Msghdr{Iov: &iov}
	msg.SetIovlen(1)
	if len(oob) > 0 {
		msg.Control = &oob[0]
		msg.SetControllen(len(oob))
	}
	_, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
