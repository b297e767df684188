package playsystemd

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Systemd listens at a socket until the test's end.
type Systemd struct {
	// Address is what NOTIFY_SOCKET says.
	Address string
	conn    *net.UnixConn
	done    chan struct{}

	mu       sync.Mutex
	deaf     bool
	barriers []int // that nobody answers
	messages []string
	store    map[string]int
	fault    error
}

// Listen starts one with an empty store.
func Listen(t testing.TB) *Systemd {
	t.Helper()
	s := &Systemd{Address: filepath.Join(t.TempDir(), "notify"), done: make(chan struct{}), store: make(map[string]int)}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: s.Address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	s.conn = conn
	go s.serve()
	t.Cleanup(func() {
		conn.Close()
		<-s.done
		for _, fd := range s.store {
			unix.Close(fd)
		}
		for _, fd := range s.barriers {
			unix.Close(fd)
		}
		if s.fault != nil {
			t.Error(s.fault)
		}
	})
	return s
}

func (s *Systemd) serve() {
	defer close(s.done)
	for {
		buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(64*4))
		n, oobn, _, _, err := s.conn.ReadMsgUnix(buf, oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		var fds []int
		if err == nil {
			fds, err = rights(oob[:oobn])
		}
		s.mu.Lock()
		if err == nil {
			err = s.take(string(buf[:n]), fds)
		}
		if err != nil {
			s.fault = err
		}
		s.mu.Unlock()
	}
}

func rights(oob []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	return fds, err
}

// take does what a message says. The caller has the lock.
func (s *Systemd) take(message string, fds []int) error {
	lines := strings.Split(message, "\n")
	name := ""
	for _, l := range lines {
		if value, ok := strings.CutPrefix(l, "FDNAME="); ok {
			name = value
		}
	}
	switch lines[0] {
	case "FDSTORE=1":
		if len(fds) != 1 || s.store[name] != 0 || name == "" || len(name) > 255 || !slices.Contains(lines, "FDPOLL=0") {
			return fmt.Errorf("%q came with %d descriptors; the store has %v", message, len(fds), s.store)
		}
		s.store[name] = fds[0]
		return nil
	case "FDSTOREREMOVE=1":
		if fd, ok := s.store[name]; ok {
			unix.Close(fd)
			delete(s.store, name)
		}
	case "BARRIER=1":
		if s.deaf {
			s.barriers = append(s.barriers, fds...)
			return nil
		}
	default:
		s.messages = append(s.messages, message)
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	return nil
}

// Deafen makes barriers wait in vain; what they bring stays open.
func (s *Systemd) Deafen(deaf bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaf = deaf
}

// Messages are those that are not about the store, in order.
func (s *Systemd) Messages() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.messages)
}

// Names are those of the stored descriptors, sorted.
func (s *Systemd) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name := range s.store {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Put stores the descriptor, which is its own from now on, in the place of
// whatever has the name.
func (s *Systemd) Put(name string, fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.store[name]; ok {
		unix.Close(old)
	}
	s.store[name] = fd
}

// Forget closes a stored descriptor, as a store does that had no room for it.
func (s *Systemd) Forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fd, ok := s.store[name]; ok {
		unix.Close(fd)
		delete(s.store, name)
	}
}

// Pass returns duplicates of the stored descriptors, as a broker that is
// started gets them. They are the caller's.
func (s *Systemd) Pass() (map[string]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	passed := make(map[string]int)
	for name, fd := range s.store {
		d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return passed, err
		}
		passed[name] = d
	}
	return passed, nil
}
