package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// busyTries bounds how often another one may be faster than we to use the
	// device that the kernel named.
	busyTries = 64
	// retryInterval is the time between two looks at what is in use.
	retryInterval = 5 * time.Millisecond
	blockDevices  = "/sys/block"
)

// configure is replaced by tests of kernels before 5.8.
var configure = unix.IoctlLoopConfigure

// attach makes a loop device of an open file (loop(4)). The caller closes it;
// with its last user the device lets go of the file.
func attach(file int) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for range busyTries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("get a free loop device: %w", err)
		}
		device, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = bind(int(device.Fd()), file)
		if err == nil {
			return device, nil
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("set up %s: %w", device.Name(), err)
		}
	}
	return nil, errors.New("others take each loop device that is free")
}

// bind sets the device up at once, or, before Linux 5.8, in two steps, between
// which a crash leaves a device that detach has to clear.
func bind(device, file int) error {
	info := unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}
	err := configure(device, &unix.LoopConfig{Fd: uint32(file), Info: info})
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTTY) {
		return err
	}
	if err := unix.IoctlSetInt(device, unix.LOOP_SET_FD, file); err != nil {
		return err
	}
	if err := unix.IoctlLoopSetStatus64(device, &info); err != nil {
		return errors.Join(err, unix.IoctlSetInt(device, unix.LOOP_CLR_FD, 0))
	}
	return nil
}

// detach waits until no loop device holds the file.
func detach(ctx context.Context, file string) error {
	for {
		held, err := devices(file)
		if err != nil || len(held) == 0 {
			return err
		}
		for _, name := range held {
			if err := clear(name, file); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("detach an image: %s is in use: %w", strings.Join(held, ", "), context.Cause(ctx))
		case <-time.After(retryInterval):
		}
	}
}

// devices returns the names of the loop devices that hold the file.
func devices(file string) ([]string, error) {
	all, err := Attached(filepath.Dir(file))
	var held []string
	for name, f := range all {
		if f == file {
			held = append(held, name)
		}
	}
	return held, err
}

// Attached returns the names of the loop devices that hold a file of a folder,
// with the file, which somebody may have removed.
func Attached(dir string) (map[string]string, error) {
	all, err := filepath.Glob(blockDevices + "/loop*/loop/backing_file")
	if err != nil {
		return nil, fmt.Errorf("look for loop devices: %w", err)
	}
	held := make(map[string]string)
	for _, path := range all {
		name := filepath.Base(filepath.Dir(filepath.Dir(path)))
		if file := backing(name); filepath.Dir(file) == dir {
			held[name] = file
		}
	}
	return held, nil
}

// backing returns the file that a device holds, also one that somebody has
// removed, or "". A device without a file has nothing to read.
func backing(name string) string {
	b, err := os.ReadFile(filepath.Join(blockDevices, name, "loop/backing_file"))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), " (deleted)")
}

// clear has the device let go of the file, now or with its last user.
func clear(name, file string) error {
	device, err := os.OpenFile("/dev/"+name, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("detach an image: %w", err)
	}
	defer device.Close()
	// Another one may have got the device before it was open; now it can't.
	if backing(name) != file {
		return nil
	}
	if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("detach an image: clear %s: %w", device.Name(), err)
	}
	return nil
}
