package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/launch"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// When a bridge dies more often than maxRestarts within restartWindow, the next
// one is started after restartPause.
const (
	maxRestarts  = 5
	restartPause = 2 * time.Second
)

// restartWindow is longer in tests, where a slow machine must not matter.
var restartWindow = 10 * time.Second

// bridge is one run of a session's bridge.
type bridge struct {
	proc *process.Process
	// conn is nil for a bridge of an earlier broker, until it is resumed.
	conn *net.UnixConn
	// lines is what it writes to its standard error; nil for one of an earlier
	// broker.
	lines *os.File
	// ready gets nil or the bridge's failure, once.
	ready chan error
	// done is closed when nobody reads conn any more.
	done chan struct{}
}

func (s *session) doBridge(ctx context.Context, _ *creation) error { return s.startBridge(ctx) }

// startBridge runs a bridge on the spares and waits until it is ready. The
// caller has seen the death of the one before. On failure the new one may
// still be dying: it is the session's bridge all the same.
func (s *session) startBridge(ctx context.Context) error {
	b, err := s.launch()
	if err != nil {
		return bridgeFailed("it can't be started", err)
	}
	// From here on a crash of ours leaves a record of it. Before, its end of
	// the socketpair tells it that we are gone, and it has nothing else.
	id := b.proc.ID()
	if err := s.update(func(r *record.Record) { r.Bridge = id }); err != nil {
		return err
	}
	if err := s.configure(b.conn); err != nil {
		return bridgeFailed("it can't be configured", err)
	}
	t := time.NewTimer(readyTimeout)
	defer t.Stop()
	select {
	case err := <-b.ready:
		return err
	case <-b.proc.Done():
		exit, _ := b.proc.Exit()
		return bridgeFailed("it ended at once: "+exit.String(), nil)
	case <-t.C:
		return bridgeFailed(fmt.Sprintf("it was not ready within %v", readyTimeout), nil)
	case <-ctx.Done():
		return bridgeFailed("it was not waited for", context.Cause(ctx))
	}
}

// launch starts the process and the reader of its socket.
func (s *session) launch() (*bridge, error) {
	conn, remote, err := fdpass.Pair()
	if err != nil {
		return nil, err
	}
	defer unix.Close(remote)
	if err := refuseRights(conn); err != nil {
		conn.Close()
		return nil, err
	}
	var log [2]int
	if err := unix.Pipe2(log[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		conn.Close()
		return nil, err
	}
	defer unix.Close(log[1])
	lines := os.NewFile(uintptr(log[0]), "bridge log")
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		conn.Close()
		lines.Close()
		return nil, err
	}
	defer unix.Close(null)
	proc, err := launch.Start(launch.Options{
		Args: s.m.bridgeArgs(s.rec.Session), Executable: s.m.Bridge, UID: s.rec.BridgeUID, GID: s.rec.BridgeUID,
		Files: []int{null, null, log[1], remote},
	})
	if err != nil {
		conn.Close()
		lines.Close()
		return nil, err
	}
	b := &bridge{proc: proc, conn: conn, lines: lines, ready: make(chan error, 1), done: make(chan struct{})}
	s.mu.Lock()
	s.bridge = b
	s.mu.Unlock()
	s.m.work.Add(2)
	go func() {
		defer s.m.work.Done()
		s.relay(b)
	}()
	go func() {
		defer s.m.work.Done()
		s.serve(b)
	}()
	return b, nil
}

// refuseRights is layout.RefuseRights for the connection of a bridge.
func refuseRights(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var refused error
	err = raw.Control(func(fd uintptr) { refused = layout.RefuseRights(int(fd)) })
	return errors.Join(err, refused)
}

func (s *session) configure(conn *net.UnixConn) error {
	names, fds := s.shared()
	c := s.rec.Custody
	s.mu.Lock()
	peers := make([]uint64, len(s.peers))
	for i, uid := range s.peers {
		peers[i] = uint64(uid)
	}
	s.mu.Unlock()
	payload, err := wire.Encode(wire.Configure{
		Session: s.rec.Session, Epoch: s.rec.Epoch, Framing: c.Framing, Descriptors: names, PeerUIDs: peers,
		MaxRecord: c.MaxRecord, MaxInput: c.MaxInput, SpoolLimit: c.SpoolLimit,
		Overflow: c.Overflow,
	})
	if err != nil {
		return err
	}
	if err := conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	return fdpass.Send(conn, payload, fds...)
}

// attend replaces the bridge whenever it dies, until the session's end or the
// broker's.
func (s *session) attend() {
	defer func() {
		s.mu.Lock()
		s.attended = false
		s.mu.Unlock()
	}()
	for {
		s.mu.Lock()
		b := s.bridge
		s.mu.Unlock()
		if b.conn == nil {
			s.regain(b)
		}
		select {
		case <-b.proc.Done():
		case <-s.ctx.Done():
			return
		}
		if !s.replace(b) {
			return
		}
	}
}

// bridgeMissing reports whether a bridge is dead whose successor is still to
// come. The caller has the session's turn.
func (s *session) bridgeMissing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attended && s.bridge.proc.Dead()
}

// replace starts a bridge in place of one that is dead as seen on its pidfd:
// two would both move the offsets that they share. It reports whether there is
// a bridge to attend to.
func (s *session) replace(old *bridge) bool {
	if s.take(s.ctx) != nil {
		return false
	}
	defer s.release()
	how := "unknown" // it was another broker's child
	if exit, ok := old.proc.Exit(); ok {
		how = exit.String()
	}
	s.bereave()
	s.happened("bridgeDied", "")
	s.log.Warn("bridge_died", "pid", old.proc.ID().PID, "exit", how)
	old.silence()
	select {
	case <-old.done:
	case <-s.ctx.Done():
		return false
	}
	old.proc.Close()
	names, _ := s.shared()
	if len(names) == 0 && s.state() == wire.StateExited {
		s.revisitLater() // on its files
		return false
	}
	if len(names) == 0 {
		s.abandon("it died before it could give a restarted broker the descriptors")
		return false
	}
	s.slowDown()
	if err := s.startBridge(s.ctx); err != nil {
		s.log.Error("bridge_failed", "error", err.Error())
		s.mu.Lock()
		b := s.bridge
		s.mu.Unlock()
		if b == old {
			s.abandon("its bridge can't be started")
			return false
		}
		if s.ctx.Err() != nil {
			// It may have the pipes: a deletion ends it, or the next broker
			// takes it up.
			return false
		}
		s.kill(b)
		return true
	}
	if s.state() == wire.StateStalled {
		s.moveTo(wire.StateRunning)
	}
	s.happened("bridgeReplaced", "")
	s.log.Info("bridge_replaced", "pid", s.info().BridgePID)
	return true
}

// silence ends the reading of a bridge that is dead: it may have given its ends
// of the socket and of the log to others, who keep them open.
func (b *bridge) silence() {
	soon := time.Now().Add(deathTimeout)
	if b.conn != nil {
		b.conn.SetReadDeadline(soon)
	}
	if b.lines != nil {
		b.lines.SetReadDeadline(soon)
	}
}

// kill kills a bridge. While it can't die the session is stalled; attend goes
// on once it is dead.
func (s *session) kill(b *bridge) {
	ctx, cancel := context.WithTimeout(s.ctx, killTimeout)
	defer cancel()
	if err := b.proc.Kill(ctx); err != nil && s.ctx.Err() == nil {
		s.happened("bridgeStalled", "")
		s.log.Error("bridge_stalled", "pid", b.proc.ID().PID, "error", err.Error())
		s.moveTo(wire.StateStalled)
	}
}

// slowDown waits before a bridge is started whose predecessors died too often:
// of the same cause, it may be. We have the pipes, so nothing is lost by it, and
// what is in the way (a full disk, someone who kills them) may go.
func (s *session) slowDown() {
	s.mu.Lock()
	now := time.Now()
	recent := s.restarts[:0]
	for _, t := range s.restarts {
		if now.Sub(t) < restartWindow {
			recent = append(recent, t)
		}
	}
	s.restarts = append(recent, now)
	slow := len(recent) >= maxRestarts
	s.mu.Unlock()
	if !slow {
		return
	}
	s.log.Error("bridge_dies_often", "deaths", len(recent), "within", restartWindow.String(), "next", restartPause.String(), "advice", "look at what the bridges said; nothing is lost meanwhile")
	s.moveTo(wire.StateStalled)
	s.wait(restartPause)
}

// abandon says that nobody holds the pipes from now on. The process goes on
// until it is terminated or deleted, unless its profile says that it ends now.
func (s *session) abandon(why string) {
	s.happened("unattached", "")
	s.log.Error("session_unattached", "reason", why)
	s.moveTo(wire.StateUnattached)
	if s.rec.Custody.Terminate && lives(s.state()) {
		s.m.work.Add(1)
		go func() {
			defer s.m.work.Done()
			if err := s.terminate(s.ctx, unattachedGrace, terminated); err != nil && s.ctx.Err() == nil {
				s.log.Error("unattached_not_ended", "error", err.Error())
			}
		}()
	}
}

// moveTo changes the state of a session that lives.
func (s *session) moveTo(state wire.State) {
	s.note(func(r *record.Record) {
		if lives(r.State) {
			r.State = state
		}
	})
}

// undoBridge ends the bridge, also one of an earlier broker.
func (s *session) undoBridge(ctx context.Context) error {
	s.mu.Lock()
	b, id := s.bridge, s.rec.Bridge
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if b == nil {
		return errors.Join(s.killRecorded(ctx, id), s.killStrays(ctx))
	}
	if err := b.proc.Kill(ctx); err != nil {
		return err
	}
	select {
	case <-b.done:
		return b.proc.Close()
	case <-ctx.Done():
		return fmt.Errorf("the bridge's socket is still read: %w", context.Cause(ctx))
	}
}

// killRecorded ends a process that only the record knows.
func (s *session) killRecorded(ctx context.Context, id process.ID) error {
	if id.PID == 0 || s.rec.Boot != s.m.Boot {
		return nil
	}
	p, err := process.Find(id)
	if errors.Is(err, process.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	return p.Kill(ctx)
}

func bridgeFailed(why string, err error) error {
	return &wire.Error{Code: wire.CodeBridgeFailed, Message: "the session's bridge failed: " + why, Advice: "have the operator look at the broker's log, which has what the bridge said", Err: err}
}
