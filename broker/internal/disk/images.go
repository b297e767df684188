package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// MinSize is the size of the smallest image, in bytes.
const MinSize = 16 << 20

// Images makes images. To make a file system takes a process; so it is done
// once for each size, and what was written is kept. The zero value is ready,
// and safe for concurrent use.
type Images struct {
	mu        sync.Mutex
	templates map[int64][]extent
}

// extent is a part of an image that does not read as zeros.
type extent struct {
	at   int64
	data []byte
}

// Prepare makes sure that images of the size, in bytes, can be made. Error:
// CodeDiskUnavailable.
func (i *Images) Prepare(ctx context.Context, size int64) error {
	_, err := i.template(ctx, size)
	return err
}

func (i *Images) template(ctx context.Context, size int64) ([]extent, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if t := i.templates[size]; t != nil {
		return t, nil
	}
	t, err := format(ctx, size)
	if err != nil {
		return nil, err
	}
	if i.templates == nil {
		i.templates = make(map[int64][]extent)
	}
	i.templates[size] = t
	return t, nil
}

// Mount makes the image, of the size in bytes, and mounts it at target, which
// it makes too: neither may exist. The mount is nosuid, nodev and noatime, and
// as private as the one that holds target. After a failure, and in the end, the
// caller unmounts target and calls Remove. Error: CodeDiskUnavailable.
func (i *Images) Mount(ctx context.Context, image, target string, size int64) error {
	t, err := i.template(ctx, size)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(image, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return unavailable("make the image", "make room on the disk of the broker's state", err)
	}
	defer f.Close()
	for _, e := range t {
		if _, err := f.WriteAt(e.data, e.at); err != nil {
			return unavailable("write the image", "make room on the disk of the broker's state", err)
		}
	}
	if err := f.Truncate(size); err != nil {
		return unavailable("make the image that large", "choose a smaller state, or another file system for the broker's state", err)
	}
	// While we have the device open, nobody else gets its number.
	device, err := attach(int(f.Fd()))
	if err != nil {
		return unavailable("attach the image", "load the kernel's module loop", err)
	}
	defer device.Close()
	if err := os.Mkdir(target, 0o700); err != nil {
		return unavailable("make the mount point", "have a look at the folder of mounts", err)
	}
	// The sparse file shrinks again with discard; noinit_itable keeps the
	// kernel from writing what lazy_itable_init left out.
	err = unix.Mount(device.Name(), target, "ext4", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, "errors=remount-ro,discard,noinit_itable")
	if err != nil {
		return unavailable("mount the image", "use a kernel with ext4, and run the broker with CAP_SYS_ADMIN", err)
	}
	return nil
}

// Remove removes an image, once its file system is unmounted everywhere. It
// waits for that until the context ends, and is then an error with the image
// still there. It needs nothing but the path, is idempotent, and serves an
// image at any point of its making.
func Remove(ctx context.Context, image string) error {
	if err := detach(ctx, image); err != nil {
		return err
	}
	if err := os.Remove(image); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove an image: %w", err)
	}
	return nil
}

func unavailable(what, advice string, err error) error {
	return &wire.Error{Code: wire.CodeDiskUnavailable, Message: "the home of a session can't be made: could not " + what, Advice: advice, Err: err}
}
