package setup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lockCache takes the cache for this process, waiting for another set-up to
// end. The lock goes with the returned file.
func lockCache(ctx context.Context, dir string, p *Progress) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, Errorf(CodeCache, err, "Look at the cause.", "the lock of the cache can't be opened")
	}
	fd := int(f.Fd())
	for said := false; ; {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			_ = f.Close()
			return nil, Errorf(CodeCache, err, "Use a cache on a local filesystem.", "the cache can't be locked")
		}
		if !said {
			holder, _ := os.ReadFile(f.Name())
			p.Printf("another set-up has this cache (process %s); waiting for it", strings.TrimSpace(string(holder)))
			said = true
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
	// For the message above only; nobody relies on it.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	}
	return f, nil
}
