package sdnotify

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// sendTimeout bounds one message, and the answer to a barrier. systemd may be busy
// for seconds while it reloads all units; a bridge waits longer for its answer.
const sendTimeout = 4 * time.Second

// statusInterval is the time between two statuses where no watchdog asks for
// more.
const statusInterval = 10 * time.Second

// Systemd is the service manager that started us. Nil is none: then everything
// succeeds and does nothing. It is safe for concurrent use.
type Systemd struct {
	fd       int
	address  unix.SockaddrUnix
	watchdog bool
	interval time.Duration

	mu sync.Mutex
	// most is how many descriptors the store takes, and kept are the names of
	// those that it has. storing is set where it ever had one.
	most    int
	kept    map[string]bool
	storing bool
	status  string
}

// Open reads who started us from the environment, and removes it from there, so
// that nobody else takes it for his. It returns nil where nobody waits for
// messages. stored are the names of the descriptors that came from the store.
//
// The store's size is in FDSTORE, which systemd sets since version 254; for an
// older one the unit does. Without, there is no store.
func Open(stored []string) (*Systemd, error) {
	env := make(map[string]string)
	for _, name := range []string{"NOTIFY_SOCKET", "FDSTORE", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		env[name] = os.Getenv(name)
		if err := os.Unsetenv(name); err != nil {
			return nil, err
		}
	}
	address := env["NOTIFY_SOCKET"]
	if address == "" {
		return nil, nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("reach systemd: %w", err)
	}
	timeout := unix.NsecToTimeval(sendTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("reach systemd: %w", err)
	}
	s := &Systemd{fd: fd, address: unix.SockaddrUnix{Name: address}, interval: statusInterval, kept: make(map[string]bool)}
	s.most, _ = strconv.Atoi(env["FDSTORE"])
	for _, name := range stored {
		s.kept[name] = true
	}
	s.storing = s.most > 0 || len(stored) > 0
	usec, err := strconv.ParseUint(env["WATCHDOG_USEC"], 10, 62)
	if pid := env["WATCHDOG_PID"]; err == nil && usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		s.watchdog = true
		s.interval = min(statusInterval, max(time.Millisecond, time.Duration(usec)*time.Microsecond/3))
	}
	return s, nil
}

// Close ends the messages. What the store has stays there.
func (s *Systemd) Close() error {
	if s == nil {
		return nil
	}
	return unix.Close(s.fd)
}

// send sends the lines as one message. Whatever becomes of us then, systemd has
// it, and the descriptors with it, which stay the caller's.
func (s *Systemd) send(fds []int, lines ...string) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		// A copy: the call writes into it.
		to := s.address
		err := unix.Sendmsg(s.fd, []byte(strings.Join(lines, "\n")), oob, &to, 0)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("tell systemd %s at %q: %w", lines[0], s.address.Name, err)
		}
	}
}

// Ready says that we serve, for the first time or with another configuration.
func (s *Systemd) Ready() error {
	if s == nil {
		return nil
	}
	return s.send(nil, "READY=1")
}

// Reloading says that the configuration is read again; Ready ends it.
func (s *Systemd) Reloading() error {
	if s == nil {
		return nil
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	return s.send(nil, "RELOADING=1", fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000))
}

// Stopping says that we end.
func (s *Systemd) Stopping() error {
	if s == nil {
		return nil
	}
	return s.send(nil, "STOPPING=1")
}

// Interval is the time between two calls of Alive.
func (s *Systemd) Interval() time.Duration {
	if s == nil {
		return statusInterval
	}
	return s.interval
}

// Alive says that the caller gets its work done, where a watchdog asks for it,
// and shows the status, which is one line, where it is another one.
func (s *Systemd) Alive(status string) error {
	if s == nil {
		return nil
	}
	var lines []string
	if s.watchdog {
		lines = append(lines, "WATCHDOG=1")
	}
	s.mu.Lock()
	if s.status != status {
		s.status = status
		lines = append(lines, "STATUS="+status)
	}
	s.mu.Unlock()
	if len(lines) == 0 {
		return nil
	}
	return s.send(nil, lines...)
}
