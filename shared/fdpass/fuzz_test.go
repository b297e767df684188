package fdpass

import (
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzRights reads any control data. There is no descriptor in it that has no
// bytes of its own, and one of another kind is never taken without an error.
func FuzzRights(f *testing.F) {
	f.Add(unix.UnixRights(0))
	f.Add(unix.UnixRights(0, 1, 2))
	f.Add(unix.UnixCredentials(&unix.Ucred{Pid: 1, Uid: 2, Gid: 3}))
	f.Add(append(unix.UnixRights(3), unix.UnixCredentials(&unix.Ucred{})...))
	f.Add(unix.UnixRights(4)[:unix.SizeofCmsghdr])
	f.Fuzz(func(t *testing.T, oob []byte) {
		fds, err := rights(oob)
		if 4*len(fds) > len(oob) {
			t.Errorf("%d descriptors in %d bytes", len(fds), len(oob))
		}
		if err == nil && len(fds) == 0 && len(oob) >= unix.SizeofCmsghdr+4 {
			// Nothing but descriptors is allowed, so it has empty messages only.
			messages, parseErr := unix.ParseSocketControlMessage(oob)
			for _, m := range messages {
				if parseErr != nil || len(m.Data) >= 4 {
					t.Errorf("nothing was taken from %x", oob)
				}
			}
		}
	})
}
