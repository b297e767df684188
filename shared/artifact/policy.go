package artifact

import (
	"strings"

	"golang.org/x/sys/unix"
)

// owner is who must own everything. It differs from root only in this
// package's own tests.
type owner struct{ uid, gid uint32 }

var rootOwner = owner{0, 0}

// mustBeDirs are the mount points that the runtime fills: a symlink there would
// send a mount, or a look-up of a device, elsewhere.
var mustBeDirs = map[string]bool{"dev": true, "proc": true, "sys": true}

// allowed refuses an entry that no artifact may hold.
func (e *Entry) allowed(want owner) error {
	refuse := func(why string) error {
		return errorf(CodeForbiddenEntry, nil, "%q %s", e.Path, why)
	}
	if e.UID != want.uid || e.GID != want.gid {
		return errorf(CodeNotRootOwned, nil, "%q belongs to %d:%d, not to %d:%d", e.Path, e.UID, e.GID, want.uid, want.gid)
	}
	if mustBeDirs[e.Path] && e.Type != TypeDir {
		return refuse("is not a directory")
	}
	if strings.HasPrefix(e.Path, "dev/") {
		return refuse("is below /dev, which must be empty")
	}
	switch {
	case e.Type == TypeSymlink && e.Mode != 0o777, e.Mode > 0o7777:
		return refuse("has an impossible mode")
	case e.Type == TypeSymlink:
		return nil
	case e.Mode&unix.S_ISUID != 0:
		return refuse("has the setuid bit")
	case e.Mode&unix.S_ISGID != 0:
		return refuse("has the setgid bit")
	case e.Mode&unix.S_ISVTX != 0:
		return refuse("has the sticky bit")
	case e.Mode&0o022 != 0:
		return refuse("is writable by group or others")
	}
	return nil
}

// trustedParent says whether no one but root, or the owner wanted, can replace
// what lies in a directory. In a sticky directory only an entry's owner can.
func trustedParent(st *unix.Stat_t, want owner) bool {
	return (st.Uid == 0 || st.Uid == want.uid) && (st.Mode&0o022 == 0 || st.Mode&unix.S_ISVTX != 0)
}
