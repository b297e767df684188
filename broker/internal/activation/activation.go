package activation

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// Socket is one socket that the broker needs.
type Socket struct {
	// Name is the deployment's id, or Admin.
	Name string
	Path string
	// UIDs may connect.
	UIDs []uint32
}

// Admin names the admin socket.
const Admin = "admin"

// backlog is how many connections may wait to be accepted.
const backlog = 128

// Listen makes the socket. What an earlier broker left at its path is
// replaced: the caller holds the lock, so that nobody listens there. Closing
// the listener leaves the socket's file, for Remove.
func Listen(s Socket) (*net.UnixListener, error) {
	if err := s.Remove(); err != nil {
		return nil, err
	}
	fd, err := layout.Bind(s.Path, s.UIDs)
	if err != nil {
		return nil, orRefuse(err, "the socket %s can't be made", s.Path)
	}
	if err := unix.Listen(fd, backlog); err != nil {
		unix.Close(fd)
		return nil, refuse(err, "the socket %s can't listen", s.Path)
	}
	return adopt(fd, s.Path)
}

// Share gives the socket to other users than before. Error:
// CodeInvalidConfig; the socket may then be root's alone.
func (s Socket) Share() error {
	if err := layout.Share(s.Path, s.UIDs); err != nil {
		return orRefuse(err, "the socket %s can't be given to its users", s.Path)
	}
	return nil
}

// Remove removes the socket's file. One that is gone is no error; what is no
// socket stays.
func (s Socket) Remove() error {
	st, err := os.Lstat(s.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && st.Mode()&fs.ModeSocket == 0:
		return refuse(nil, "%s is there and is no socket", s.Path)
	case err == nil:
		err = os.Remove(s.Path)
	}
	if err != nil {
		return refuse(err, "the socket %s can't be removed", s.Path)
	}
	return nil
}

// firstFD is the first descriptor that systemd passes (sd_listen_fds(3)).
const firstFD = 3

// Passed are the descriptors that systemd passed: the sockets of its units, and
// what an earlier broker had it keep.
type Passed struct {
	// Stored are the kept ones, by name. They are the caller's.
	Stored map[string]int
	// sockets are all others, with names that need not differ.
	sockets []passed
}

type passed struct {
	name string
	fd   int
}

// Receive takes the descriptors that systemd passed, and makes them
// close-on-exec. It removes their description from the environment: they are
// there once. A dot is in each name of a stored one, and in none of a socket.
func Receive() (*Passed, error) {
	n, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if err != nil || os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		n = 0
	}
	names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	for _, v := range []string{"LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"} {
		if err := os.Unsetenv(v); err != nil {
			return nil, err
		}
	}
	p := &Passed{Stored: make(map[string]int)}
	for i := range n {
		fd, name := firstFD+i, ""
		unix.CloseOnExec(fd)
		if i < len(names) {
			name = names[i]
		}
		if !strings.Contains(name, ".") {
			p.sockets = append(p.sockets, passed{name, fd})
			continue
		}
		if twin, ok := p.Stored[name]; ok {
			unix.Close(twin)
		}
		p.Stored[name] = fd
	}
	return p, nil
}

// Listeners adopts the sockets, by their names (FileDescriptorName=). Each that
// is needed must be there, listening at its path; others are refused, for
// nobody would answer on them.
func (p *Passed) Listeners(sockets []Socket) (map[string]*net.UnixListener, error) {
	if len(p.sockets) == 0 {
		return nil, refuse(nil, "no sockets were passed by systemd (LISTEN_FDS and LISTEN_PID)")
	}
	paths := make(map[string]string)
	for _, s := range sockets {
		paths[s.Name] = s.Path
	}
	got := make(map[string]*net.UnixListener)
	for i, s := range p.sockets {
		if paths[s.name] == "" || got[s.name] != nil {
			return nil, refuse(nil, "socket %d of %d from systemd has no name of its own that is a deployment's id or %q", i+1, len(p.sockets), Admin)
		}
		l, err := takeOver(s.fd, paths[s.name])
		if err != nil {
			return nil, err
		}
		got[s.name] = l
	}
	for _, s := range sockets {
		if got[s.Name] == nil {
			return nil, refuse(nil, "systemd passed no socket named %q", s.Name)
		}
	}
	return got, nil
}

// takeOver adopts one socket of systemd's.
func takeOver(fd int, path string) (*net.UnixListener, error) {
	if err := layout.RefuseRights(fd); err != nil {
		return nil, refuse(err, "descriptor %d from systemd is no socket", fd)
	}
	l, err := adopt(fd, path)
	if err == nil && l.Addr().String() != path {
		l.Close()
		return nil, refuse(nil, "descriptor %d from systemd listens at %s, not at %s", fd, l.Addr(), path)
	}
	return l, err
}

// adopt takes ownership of the descriptor, also when it fails. The listener
// has a duplicate of it, and leaves the socket's file when it is closed.
func adopt(fd int, path string) (*net.UnixListener, error) {
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, refuse(err, "the descriptor for %s is no listening socket", path)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, refuse(nil, "the descriptor for %s listens at %s", path, l.Addr())
	}
	u.SetUnlinkOnClose(false)
	return u, nil
}

// Lock is held by the one broker of a layout until it ends.
type Lock struct{ file *os.File }

// TryLock takes the lock, and makes its file if create is set; without, a
// missing one gives a nil Lock, and nothing has changed. Error:
// CodeBrokerRunning, with the pid of the one that holds it.
func TryLock(path string, create bool) (*Lock, error) {
	flags := os.O_RDWR | unix.O_NOFOLLOW
	if create {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) && !create {
		return nil, nil
	}
	if err != nil {
		return nil, refuse(err, "the lock %s can't be opened", path)
	}
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, refuse(err, "the lock %s can't be taken", path)
	}
	var locked error
	err = errors.Join(raw.Control(func(fd uintptr) { locked = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB) }), locked)
	if errors.Is(err, unix.EWOULDBLOCK) {
		defer f.Close()
		pid, _ := io.ReadAll(io.LimitReader(f, 20))
		return nil, &wire.Error{
			Code: wire.CodeBrokerRunning, Message: fmt.Sprintf("a broker runs already, with pid %s", strings.TrimSpace(string(pid))),
			Advice: "use that one, or stop it first",
		}
	}
	if err != nil {
		f.Close()
		return nil, refuse(err, "the lock %s can't be taken", path)
	}
	return &Lock{f}, nil
}

// Sign writes our pid into the lock, for whoever finds it taken.
func (l *Lock) Sign() error {
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	_, err := l.file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// Close lets go of the lock. Its file stays: removing it would let two brokers
// hold two locks of one name.
func (l *Lock) Close() error { return l.file.Close() }

func refuse(err error, format string, args ...any) error {
	return &wire.Error{Code: wire.CodeInvalidConfig, Message: fmt.Sprintf(format, args...), Advice: "correct the units or the folder, and start the broker again", Err: err}
}

// orRefuse keeps an error that says what to do.
func orRefuse(err error, format string, args ...any) error {
	var e *wire.Error
	if errors.As(err, &e) {
		return err
	}
	return refuse(err, format, args...)
}
