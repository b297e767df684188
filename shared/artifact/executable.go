package artifact

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// firstExecFD keeps an executable's descriptor above those that a starting
// child gets at fixed numbers: moving one of them onto it before exec would
// replace the program.
const firstExecFD = 100

// Executable is a program that was hashed by the descriptor it will be executed
// by, so that no rename or replacement in between matters.
type Executable struct {
	*Artifact
	mtime unix.Timespec // when it was opened
}

// OpenExecutable opens a file artifact once, read-only and close-on-exec,
// verifies it in full through that descriptor, and keeps it. The caller closes it
// when nothing will be started from it any more.
func OpenExecutable(ctx context.Context, loc Location) (*Executable, error) {
	return openExecutable(ctx, loc, rootOwner)
}

func openExecutable(ctx context.Context, loc Location, want owner) (*Executable, error) {
	a, err := open(loc, want)
	if err != nil {
		return nil, err
	}
	x, err := a.executable(ctx)
	if err != nil {
		_ = a.Close()
		return nil, err
	}
	return x, nil
}

// executable turns an open artifact into an executable and takes it over.
func (a *Artifact) executable(ctx context.Context) (*Executable, error) {
	if a.Manifest.Kind != KindFile || a.Manifest.Entries[0].Mode&0o111 == 0 {
		return nil, errorf(CodeForbiddenEntry, nil, "%q is not an executable file", a.loc.Path)
	}
	high, err := retryEINTR(func() (int, error) { return unix.FcntlInt(uintptr(a.fd), unix.F_DUPFD_CLOEXEC, firstExecFD) })
	if err != nil {
		return nil, ioError(err, "the descriptor of %q can't be moved", a.loc.Path)
	}
	_ = unix.Close(a.fd)
	a.fd = high
	var st unix.Stat_t
	if err := unix.Fstat(a.fd, &st); err != nil {
		return nil, ioError(err, "%q can't be examined", a.loc.Path)
	}
	x := &Executable{a, st.Mtim}
	if err := a.VerifyFull(ctx, nil); err != nil {
		return nil, err
	}
	// Parts that were hashed may have been written meanwhile.
	return x, x.VerifyIdentity()
}

// Path returns a name for exec that leads to the verified descriptor, in this
// process and in a child of it until its exec. It does not survive into the
// program: the descriptor is close-on-exec, which binaries do not need and
// scripts would.
func (x *Executable) Path() string { return fmt.Sprintf("/proc/self/fd/%d", x.fd) }

// VerifyIdentity checks that the open file was not written since it was opened.
// Unlike that of a tree it does not look at the path, which may lead elsewhere
// by now: an upgrade replaces the file. What it is there for is one that copies
// over it instead, since the descriptor would then lead to bytes that nobody
// has verified. A user who can write the file can't set its time back; root
// can, and can do worse. (Where the kernel answers ETXTBSY this is possible
// only while nothing runs from the file. A sealed copy in memory would need no
// check; of runsc it would take 80 MiB.)
func (x *Executable) VerifyIdentity() error {
	var st unix.Stat_t
	if err := unix.Fstat(x.fd, &st); err != nil {
		return ioError(err, "%q can't be examined", x.loc.Path)
	}
	if st.Mtim != x.mtime || st.Size != x.Manifest.Bytes() {
		return errorf(CodeIdentityChanged, nil, "%q was written after it was verified", x.loc.Path)
	}
	return nil
}
