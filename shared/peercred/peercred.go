package peercred

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Peer is a connection's other end. Its zero value is nobody: it matches no
// uid, not even 0 (R11).
type Peer struct {
	known         bool
	uid, gid, pid uint32
}

// overflowUID is what the kernel reports for a uid without a mapping in our
// user namespace (user_namespaces(7)); invalidUID is (uid_t)-1. Neither names
// a user.
const (
	overflowUID = 65534
	invalidUID  = 1<<32 - 1
)

// Of returns the peer of a connected socket: its effective ids when it called
// connect(2), listen(2) or socketpair(2). They stay those of that moment,
// whoever the socket is handed to since: having been given a connection is
// having been given its rights. Call it once, right after accept. It returns
// the zero Peer, without an error, when the kernel names no user of ours.
func Of(c *net.UnixConn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Peer{}, fmt.Errorf("peer credentials: %w", err)
	}
	if credErr != nil {
		return Peer{}, fmt.Errorf("peer credentials: %w", credErr)
	}
	return from(cred), nil
}

func from(cred *unix.Ucred) Peer {
	if cred.Uid == invalidUID || cred.Uid == overflowUID {
		return Peer{}
	}
	return Peer{known: true, uid: cred.Uid, gid: cred.Gid, pid: uint32(cred.Pid)}
}

// Is reports whether the peer is the user with this uid.
func (p Peer) Is(uid uint32) bool { return p.known && p.uid == uid }

// Known reports whether the kernel named a user at all.
func (p Peer) Known() bool { return p.known }

// UID returns the user id for an audit line; 2^32-1 for nobody.
func (p Peer) UID() uint32 {
	if !p.known {
		return invalidUID
	}
	return p.uid
}

// GID returns the group id for an audit line; 2^32-1 for nobody.
func (p Peer) GID() uint32 {
	if !p.known {
		return invalidUID
	}
	return p.gid
}

// PID returns the process id for an audit line only: a pid is reused, so
// nothing may be authorised by it.
func (p Peer) PID() uint32 { return p.pid }
