package custody

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func rawPipe(t *testing.T, flags int) (r, w int) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|flags); err != nil {
		t.Fatal(err)
	}
	return p[0], p[1]
}

func rawFile(t *testing.T, path string, flags int) int {
	t.Helper()
	fd, err := unix.Open(path, flags|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func isOpen(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil
}

// A splice that waits is released by Close, and says so; one from a pipe
// without writers is at its end.
func TestSpliceWaits(t *testing.T) {
	dir := t.TempDir()
	for _, write := range []bool{false, true} {
		r, w := rawPipe(t, unix.O_NONBLOCK)
		f := NewFile(rawFile(t, filepath.Join(dir, "f"), unix.O_RDWR), "f")
		end, other := r, w
		if write {
			end, other = w, r
			if err := f.Truncate(4 << 20); err != nil {
				t.Fatal(err)
			}
		}
		p, err := NewPipe(end, "p")
		if err != nil {
			t.Fatal(err)
		}
		result := make(chan error, 1)
		started := make(chan struct{})
		go func() {
			close(started)
			var err error
			for err == nil {
				if write {
					_, err = p.SpliceFrom(f, 1<<20)
				} else {
					_, err = p.SpliceTo(f, 1<<20)
				}
			}
			result <- err
		}()
		<-started
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-result:
			if !errors.Is(err, os.ErrClosed) {
				t.Errorf("write %t: %v", write, err)
			}
		case <-time.After(time.Minute):
			t.Fatal("the splice is not released")
		}
		unix.Close(other)
		f.Close()
	}
}

// The kernel keeps pipe, offset and file in step.
func TestSpliceMovesBytesOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	f := NewFile(rawFile(t, path, unix.O_WRONLY), "f")
	defer f.Close()
	r, w := rawPipe(t, unix.O_NONBLOCK)
	p, err := NewPipe(r, "p")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var want []byte
	for i := range 10 {
		part := bytes.Repeat([]byte{byte(i)}, 100*i+1)
		want = append(want, part...)
		if _, err := unix.Write(w, part); err != nil {
			t.Fatal(err)
		}
		for {
			if _, err := p.SpliceTo(f, 64); err != nil {
				t.Fatal(err)
			}
			off, err := f.Offset()
			if err != nil {
				t.Fatal(err)
			}
			held, err := p.Buffered()
			if err != nil || off+held != int64(len(want)) {
				t.Fatalf("offset %d and %d in the pipe of %d: %v", off, held, len(want), err)
			}
			if held == 0 {
				break
			}
		}
	}
	unix.Close(w)
	if _, err := p.SpliceTo(f, 64); !errors.Is(err, io.EOF) {
		t.Fatalf("at the end: %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
}

// The mode of a description that others share is never changed.
func TestBlockingPipeIsRefused(t *testing.T) {
	r, w := rawPipe(t, 0)
	defer unix.Close(w)
	keep, err := unix.FcntlInt(uintptr(r), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(keep)
	if _, err := NewPipe(r, "p"); err == nil {
		t.Fatal("a blocking pipe was adopted")
	}
	if isOpen(r) {
		t.Error("the refused descriptor is open")
	}
	if flags, err := unix.FcntlInt(uintptr(keep), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK != 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
}

// descriptors makes a whole set, and changes one.
func descriptors(t *testing.T, change func(byName map[wire.DescriptorName]int)) (names []wire.DescriptorName, fds []int) {
	t.Helper()
	dir := t.TempDir()
	byName := make(map[wire.DescriptorName]int)
	spare := func(fd int) { t.Cleanup(func() { unix.Close(fd) }) }
	for name, w := range wanted {
		switch {
		case w.kind == unix.S_IFIFO && w.read:
			r, other := rawPipe(t, unix.O_NONBLOCK)
			byName[name] = r
			spare(other)
		case w.kind == unix.S_IFIFO:
			other, end := rawPipe(t, unix.O_NONBLOCK)
			byName[name] = end
			spare(other)
		case w.kind == unix.S_IFSOCK:
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, string(name)+".sock")}); err != nil {
				t.Fatal(err)
			}
			if err := unix.Listen(fd, 1); err != nil {
				t.Fatal(err)
			}
			byName[name] = fd
		}
	}
	file := func(path string, flags int, name wire.DescriptorName) {
		byName[name] = rawFile(t, filepath.Join(dir, path), flags)
	}
	file("stdout", unix.O_WRONLY, wire.FDStdoutSpool)
	file("stdout", unix.O_RDWR, wire.FDStdoutRead)
	file("stderr", unix.O_WRONLY, wire.FDStderrSpool)
	file("stderr", unix.O_RDWR, wire.FDStderrRead)
	file("input", unix.O_RDONLY, wire.FDInputSplice)
	file("input", unix.O_RDWR, wire.FDInputData)
	file("exit", unix.O_WRONLY, wire.FDExitSpool)
	file("exit", unix.O_RDONLY, wire.FDExitRead)
	file("index", unix.O_RDWR, wire.FDIndex)
	file("control", unix.O_RDWR, wire.FDControlLog)
	change(byName)
	for name, fd := range byName {
		names, fds = append(names, name), append(fds, fd)
	}
	return names, fds
}

// R3: what the broker passes is checked before it is used; what can't be used
// is closed, all of it.
func TestAdopt(t *testing.T) {
	swap := func(name wire.DescriptorName, fd func(t *testing.T) int) func(*testing.T, map[wire.DescriptorName]int) {
		return func(t *testing.T, m map[wire.DescriptorName]int) {
			unix.Close(m[name])
			m[name] = fd(t)
		}
	}
	tmp := func(flags int) func(t *testing.T) int {
		return func(t *testing.T) int { return rawFile(t, filepath.Join(t.TempDir(), "other"), flags) }
	}
	for _, test := range []struct {
		name   string
		change func(*testing.T, map[wire.DescriptorName]int)
		ok     bool
	}{
		{"whole", func(*testing.T, map[wire.DescriptorName]int) {}, true},
		{"input closed", func(t *testing.T, m map[wire.DescriptorName]int) {
			unix.Close(m[wire.FDStdin])
			delete(m, wire.FDStdin)
		}, true},
		{"missing", func(t *testing.T, m map[wire.DescriptorName]int) {
			unix.Close(m[wire.FDIndex])
			delete(m, wire.FDIndex)
		}, false},
		{"unknown", func(t *testing.T, m map[wire.DescriptorName]int) { m["other"] = tmp(unix.O_RDWR)(t) }, false},
		{"file for pipe", swap(wire.FDStdout, tmp(unix.O_RDWR)), false},
		{"unwritable", swap(wire.FDIndex, tmp(unix.O_RDONLY)), false},
		{"unreadable", swap(wire.FDControlLog, tmp(unix.O_WRONLY)), false},
		{"appending", swap(wire.FDIndex, tmp(unix.O_RDWR|unix.O_APPEND)), false},
		{"other file", swap(wire.FDStdoutRead, tmp(unix.O_RDWR)), false},
		{"wrong end", swap(wire.FDStdout, func(t *testing.T) int { r, w := rawPipe(t, unix.O_NONBLOCK); unix.Close(r); return w }), false},
		{"blocking", swap(wire.FDStdout, func(t *testing.T) int { r, w := rawPipe(t, 0); unix.Close(w); return r }), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			names, fds := descriptors(t, func(m map[wire.DescriptorName]int) { test.change(t, m) })
			s, err := Adopt(names, fds)
			if test.ok {
				if err != nil {
					t.Fatal(err)
				}
				if (s.Stdin == nil) != (test.name == "input closed") {
					t.Error("standard input is not as passed")
				}
				s.Close()
			} else if wire.CodeOf(err) != wire.CodeInvalidConfig {
				t.Fatalf("adopted: %v", err)
			}
			for i, fd := range fds {
				if isOpen(fd) {
					t.Errorf("%s is open", names[i])
				}
			}
		})
	}
}
