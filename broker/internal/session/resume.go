package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

const (
	// resumeTimeout bounds one try to take descriptors back, and resumeTick is
	// the time between two: a bridge that is stopped goes on some day.
	resumeTimeout = 5 * time.Second
	resumeTick    = 200 * time.Millisecond
	// resumeBacklog is how many brokers may wait: one that died in the middle
	// of it, and the next.
	resumeBacklog = 8
)

// listenForBrokers makes the socket at which a later broker finds the bridge.
// It lies in a folder that is root's alone; the bridge listens, and never
// connects anywhere.
func (s *session) listenForBrokers() error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("make the custody socket: %w", err)
	}
	s.hold(wire.FDCustody, fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: s.paths.Custody}); err != nil {
		return fmt.Errorf("bind the custody socket: %w", err)
	}
	if err := unix.Listen(fd, resumeBacklog); err != nil {
		return fmt.Errorf("listen at the custody socket: %w", err)
	}
	return nil
}

// identities says what the spares are, for whoever takes them back.
func (s *session) identities() (map[wire.DescriptorName]record.Identity, error) {
	names, fds := s.shared()
	all := make(map[wire.DescriptorName]record.Identity, len(names))
	for i, name := range names {
		id, err := identify(fds[i])
		if err != nil {
			return nil, fmt.Errorf("identify %s: %w", name, err)
		}
		all[name] = id
	}
	return all, nil
}

func identify(fd int) (record.Identity, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return record.Identity{}, err
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return record.Identity{}, err
	}
	return record.Identity{Dev: st.Dev, Ino: st.Ino, Type: st.Mode & unix.S_IFMT, Access: flags & (unix.O_ACCMODE | unix.O_APPEND)}, nil
}

// regain takes the descriptors back from a bridge that outlived its broker
// (R33), and returns when it has them, when the bridge is dead, or with the
// session. A bridge that does not answer is asked again: meanwhile it works, and
// nobody else does.
func (s *session) regain(b *bridge) {
	for told := false; ; {
		err := s.resume(b)
		if err == nil {
			s.happened("sparesRegained", "")
			s.log.Info("spares_regained", "pid", b.proc.ID().PID)
			return
		}
		if !told && s.ctx.Err() == nil && !b.proc.Dead() {
			told = true
			s.log.Error("spares_not_regained", "pid", b.proc.ID().PID, "error", err.Error(), "advice", "it is asked again until it answers; if it dies before, the session is unattached")
		}
		t := time.NewTimer(resumeTick)
		select {
		case <-t.C:
		case <-b.proc.Done():
			t.Stop()
			return
		case <-s.ctx.Done():
			t.Stop()
			return
		}
	}
}

// resume makes the bridge ours, with all that it holds, or changes nothing.
func (s *session) resume(b *bridge) error {
	if err := s.take(s.ctx); err != nil {
		return err
	}
	defer s.release()
	if b.proc.Dead() {
		return errors.New("it is dead")
	}
	conn, err := dialBridge(s.ctx, s.paths.Custody)
	if err != nil {
		return err
	}
	resumed, fds, err := s.askBack(conn)
	if err != nil {
		conn.Close()
		return err
	}
	for i, name := range resumed.Descriptors {
		s.hold(name, fds[i])
	}
	if err := s.complete(resumed.Descriptors); err != nil {
		conn.Close()
		s.dropSpares()
		return err
	}
	// Before the bridge counts as heard.
	if err := s.seat(resumed.Seat); err != nil {
		s.log.Error("record_unsaved", "error", err.Error())
	}
	s.mu.Lock()
	b.conn, b.ready, b.done = conn, make(chan error, 1), make(chan struct{})
	if s.reported == nil {
		s.reported = resumed.Exit
	}
	s.mu.Unlock()
	s.m.work.Add(1)
	go func() {
		defer s.m.work.Done()
		s.serve(b)
	}()
	return nil
}

// complete puts pipes that are at their end in the place of those that the
// bridge has read to theirs and closed, so that the next bridge can be started.
func (s *session) complete(names []wire.DescriptorName) error {
	missing := false
	for _, name := range endless {
		if !slices.Contains(names, name) {
			missing = true
			if err := s.holdEnded(name); err != nil {
				return err
			}
		}
	}
	if !missing {
		return nil
	}
	identities, err := s.identities()
	if err != nil {
		return err
	}
	return s.update(func(r *record.Record) { r.Custody.Descriptors = identities })
}

// dialBridge connects to a bridge's custody socket. It never waits: a backlog
// that is full is an error.
func dialBridge(ctx context.Context, path string) (*net.UnixConn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("resume: %w", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("resume: connect: %w", err)
	}
	return fdpass.Adopt(fd)
}

// askBack asks for the descriptors and checks that they are the session's. A
// bridge that was taken over could send any; what is accepted is what the
// record says of each: device, inode, type, access mode.
func (s *session) askBack(conn *net.UnixConn) (resumed wire.Resumed, fds []int, err error) {
	stop := context.AfterFunc(s.ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	payload, err := wire.Encode(wire.Resume{Session: s.rec.Session, Epoch: s.rec.Epoch})
	if err != nil {
		return resumed, nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(resumeTimeout)); err != nil {
		return resumed, nil, err
	}
	if err := fdpass.Send(conn, payload); err != nil {
		return resumed, nil, err
	}
	payload, fds, err = fdpass.Receive(conn, wire.MaxCustodyMessage)
	if err != nil {
		return resumed, nil, err
	}
	m, err := wire.Decode(wire.FromBridge, payload)
	resumed, ok := m.(wire.Resumed)
	if err == nil && !ok {
		err = errors.New("resume: the answer is another message")
	}
	if err == nil {
		err = s.checkReturned(resumed.Descriptors, fds)
	}
	if err == nil {
		err = refuseRights(conn)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		fdpass.CloseAll(fds)
		return resumed, nil, err
	}
	return resumed, fds, nil
}

func (s *session) checkReturned(names []wire.DescriptorName, fds []int) error {
	if len(names) != len(fds) {
		return fmt.Errorf("resume: %d descriptors are named and %d came", len(names), len(fds))
	}
	want := s.rec.Custody.Descriptors
	for i, name := range names {
		id, err := identify(fds[i])
		if err != nil {
			return fmt.Errorf("resume: %s: %w", name, err)
		}
		if known, ok := want[name]; !ok || id != known {
			return fmt.Errorf("resume: %s is %+v, not %+v", name, id, known)
		}
	}
	for name := range want {
		// A bridge closes a pipe that has ended.
		if !slices.Contains(names, name) && want[name].Type != unix.S_IFIFO {
			return fmt.Errorf("resume: %s did not come", name)
		}
	}
	return nil
}
