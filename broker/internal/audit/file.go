package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/trusted"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// file is the open file. Every line is one write(2) with O_APPEND. Lines that
// were written survive the broker's death; the kernel's own death only those
// that it had brought to the disk, which is waited for when the file is
// renamed and when it is closed. FILE.1 is the youngest of those renamed.
type file struct {
	registry.Audit
	dir  *os.File
	fd   int // -1 while none is open
	size int64
	// torn says that the file does not end with a newline: a write was cut
	// short. The next line begins with one.
	torn bool
}

func openFile(c registry.Audit) (*file, error) {
	path := filepath.Dir(c.File)
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, refuse(path, "the folder can't be made", err)
	}
	dir, err := trusted.OpenDir(path)
	if err != nil {
		return nil, err
	}
	f := &file{Audit: c, dir: dir, fd: -1}
	// A full disk must not keep a broker from starting, which then makes room.
	if err := f.ensure(); err != nil && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		dir.Close()
		return nil, err
	}
	return f, nil
}

func (f *file) close() error {
	return errors.Join(f.closeCurrent(), f.dir.Close())
}

// write appends a line, to a new file when this one would become too long.
func (f *file) write(line []byte) error {
	if f.fd >= 0 && f.size > 0 && f.size+int64(len(line))+1 > int64(f.MaxSize) {
		if err := f.rotate(); err != nil {
			return err
		}
	}
	if err := f.ensure(); err != nil {
		return err
	}
	if f.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := unix.Write(f.fd, line)
	if n > 0 {
		f.size += int64(n)
		f.torn = line[n-1] != '\n'
	}
	if err == nil && n < len(line) {
		err = io.ErrShortWrite
	}
	return err
}

// ensure makes sure that what is open is what has the name: someone may have
// moved it away or removed it.
func (f *file) ensure() error {
	var named, open unix.Stat_t
	name := filepath.Base(f.File)
	if f.fd >= 0 {
		if err := unix.Fstat(f.fd, &open); err != nil {
			return err
		}
		err := unix.Fstatat(f.dirFD(), name, &named, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && named.Dev == open.Dev && named.Ino == open.Ino {
			return nil
		}
		if err := f.closeCurrent(); err != nil {
			return err
		}
	}
	// Read as well: whether it ends with a newline.
	fd, err := unix.Openat(f.dirFD(), name, unix.O_RDWR|unix.O_APPEND|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0o600)
	if err != nil {
		return refuse(f.File, "the audit file can't be opened", err)
	}
	if err := f.examine(fd); err != nil {
		unix.Close(fd)
		return err
	}
	return nil
}

// examine takes the descriptor if it is a file of root's alone.
func (f *file) examine(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != 0 || st.Mode&0o077 != 0 || st.Nlink > 1 {
		return refuse(f.File, fmt.Sprintf("the audit file has the mode %06o, belongs to uid %d and has %d names; it is a regular file of root's with the mode 0600 and one name", st.Mode, st.Uid, st.Nlink), nil)
	}
	last := []byte{'\n'}
	if st.Size > 0 {
		if _, err := unix.Pread(fd, last, st.Size-1); err != nil {
			return err
		}
	}
	f.fd, f.size, f.torn = fd, st.Size, last[0] != '\n'
	return nil
}

// rotate renames the files by one number. A number that is missing, because of
// a crash between two of its steps, does no harm.
func (f *file) rotate() error {
	if err := f.closeCurrent(); err != nil {
		return err
	}
	name := filepath.Base(f.File)
	for n := f.Files - 1; n > 0; n-- {
		from := fmt.Sprintf("%s.%d", name, n-1)
		if n == 1 {
			from = name
		}
		err := unix.Renameat(f.dirFD(), from, f.dirFD(), fmt.Sprintf("%s.%d", name, n))
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("rename the audit file: %w", err)
		}
	}
	return f.dir.Sync()
}

// closeCurrent brings the open file to the disk and closes it.
func (f *file) closeCurrent() error {
	if f.fd < 0 {
		return nil
	}
	fd := f.fd
	f.fd = -1
	return errors.Join(unix.Fdatasync(fd), unix.Close(fd))
}

// dirFD lends the folder's descriptor; a folder has no O_NONBLOCK to lose.
func (f *file) dirFD() int { return int(f.dir.Fd()) }

func refuse(path, why string, cause error) error {
	return &wire.Error{
		Code: wire.CodeInvalidConfig, Message: path + ": " + why,
		Advice: "correct [audit] of broker.toml, or mend the place as root", Err: cause,
	}
}
