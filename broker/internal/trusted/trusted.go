package trusted

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"git.jb.codes/jb/paseo-sandbox/shared/artifact"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// OpenDir opens the folder at an absolute path. It and everything above it
// belong to root, are no symbolic links, and can't be changed by others. The
// caller closes it. Error: CodeInvalidConfig; errors.Is matches
// fs.ErrNotExist when there is none.
func OpenDir(path string) (*os.File, error) {
	if err := artifact.CheckPlace(path); err != nil {
		return nil, refuse(path, "it is not a folder that root alone can change", err)
	}
	return openAt(unix.AT_FDCWD, path, path, unix.S_IFDIR)
}

// OpenFile opens the file of this name in the folder, by the same rules. The
// caller closes it.
func OpenFile(dir *os.File, name string) (*os.File, error) {
	var f *os.File
	err := control(dir, func(fd int) (err error) {
		f, err = openAt(fd, name, filepath.Join(dir.Name(), name), unix.S_IFREG)
		return err
	})
	return f, err
}

// OpenExecutable opens a program for execution by its descriptor. The file
// belongs to root, can't be written by others, and is no symbolic link. The
// folders above it are not looked at: what was opened is what runs.
func OpenExecutable(path string) (*os.File, error) {
	f, err := openAt(unix.AT_FDCWD, path, path, unix.S_IFREG)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || st.Mode()&0o111 == 0 {
		f.Close()
		return nil, refuse(path, "it is not executable", err)
	}
	return f, nil
}

// ReadFile returns the contents of a file in the folder, at most max bytes.
func ReadFile(dir *os.File, name string, max int64) ([]byte, error) {
	f, err := OpenFile(dir, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, max+1))
	if err != nil {
		return nil, refuse(f.Name(), "it can't be read", err)
	}
	if int64(len(b)) > max {
		return nil, refuse(f.Name(), fmt.Sprintf("it is longer than %d bytes", max), nil)
	}
	return b, nil
}

// MakeDir makes sure that there is a folder at the path with exactly this
// mode, below folders that exist. One that others could write is refused, for
// nobody knows what they put there.
func MakeDir(path string, mode os.FileMode) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return refuse(path, "it can't be made", err)
	}
	dir, err := OpenDir(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Chmod(mode); err != nil {
		return refuse(path, "its mode can't be set", err)
	}
	return nil
}

func openAt(dirfd int, name, path string, kind uint32) (*os.File, error) {
	// O_NONBLOCK: opening a named pipe must not wait for a writer.
	fd, err := unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, refuse(path, "it is a symbolic link", err)
	case err != nil:
		return nil, refuse(path, "it can't be opened", err)
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, refuse(path, "it can't be examined", err)
	}
	why := ""
	switch {
	case st.Mode&unix.S_IFMT != kind:
		why = "it has the wrong file type"
	case st.Uid != 0:
		why = fmt.Sprintf("it belongs to uid %d, not to root", st.Uid)
	case st.Mode&0o022 != 0:
		why = fmt.Sprintf("its mode %04o lets others than root write it", st.Mode&0o7777)
	}
	if why != "" {
		f.Close()
		return nil, refuse(path, why, nil)
	}
	return f, nil
}

// control lends the descriptor to f without changing its flags.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

func refuse(path, why string, cause error) error {
	advice := "chown it to root and chmod it so that nobody else can write it"
	if errors.Is(cause, fs.ErrNotExist) {
		why, advice = "it does not exist", "make it, as root; the README of the broker shows an example"
	}
	// The cause of a folder above is an error with a path of its own.
	return &wire.Error{Code: wire.CodeInvalidConfig, Message: fmt.Sprintf("%s: %s", path, why), Advice: advice, Err: cause}
}
