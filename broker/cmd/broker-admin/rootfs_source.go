package main

import (
	"context"
	"errors"
	"os"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/rootfs"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// importFrom imports a folder, a file, or standard input.
func importFrom(ctx context.Context, s *rootfs.Store, source string, o rootfs.Options) (*rootfs.Result, error) {
	if source == "-" {
		return importStream(ctx, s, os.Stdin, o)
	}
	st, err := os.Stat(source)
	if err != nil {
		return nil, &wire.Error{Code: rootfs.CodeFailed, Message: "the source can't be read", Advice: "give a folder, a tar archive, or - for standard input", Err: err}
	}
	if st.IsDir() {
		return s.ImportDir(ctx, source, o)
	}
	f, err := os.Open(source)
	if err != nil {
		return nil, &wire.Error{Code: rootfs.CodeFailed, Message: "the source can't be opened", Advice: "run it as root", Err: err}
	}
	defer f.Close()
	return importStream(ctx, s, f, o)
}

func importStream(ctx context.Context, s *rootfs.Store, f *os.File, o rootfs.Options) (*rootfs.Result, error) {
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err == nil {
		return nil, &wire.Error{Code: rootfs.CodeArchiveInvalid, Message: "the source is a terminal", Advice: "pipe an archive into it: docker export CONTAINER | broker-admin rootfs import -"}
	}
	r, err := newStream(ctx, f)
	if err != nil {
		return nil, err
	}
	defer r.close()
	return s.ImportTar(ctx, r, o)
}

// stream reads a file whose reads may wait for ever, until the context ends.
type stream struct {
	ctx  context.Context
	f    *os.File
	wake int // an eventfd(2), readable once the context has ended
	stop func() bool
	done chan struct{} // closed after the last use of wake
}

func newStream(ctx context.Context, f *os.File) (*stream, error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	s := &stream{ctx: ctx, f: f, wake: wake, done: make(chan struct{})}
	s.stop = context.AfterFunc(ctx, func() {
		defer close(s.done)
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // a counter that is 0 takes it
	})
	return s, nil
}

func (s *stream) Read(b []byte) (int, error) {
	fds := []unix.PollFd{{Fd: int32(s.f.Fd()), Events: unix.POLLIN}, {Fd: int32(s.wake), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, -1)
		switch {
		case s.ctx.Err() != nil:
			return 0, s.ctx.Err()
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, os.NewSyscallError("poll", err)
		default:
			return s.f.Read(b)
		}
	}
}

// close lets go of what Read waits on; the file stays the caller's.
func (s *stream) close() {
	if !s.stop() {
		<-s.done
	}
	unix.Close(s.wake)
}
