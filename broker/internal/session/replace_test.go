package session

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/record"
	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// R33: a bridge that gave its ends of the socket and of the log away is
// replaced when it dies, whoever holds them, and they cost the broker nothing.
func TestBridgeGivesItsSocketAway(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "sharing")
	defer s.delete(m, info.Session)
	before := openFDs(t)
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.l.Session("one", false, info.Session).Socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	oob := make([]byte, unix.CmsgSpace(8))
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), oob)
	c.Close()
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 2 {
		t.Fatal(fds, err)
	}
	defer fdpass.CloseAll(fds)
	s.eventually("another bridge", s.said("bridge_replaced"))
	s.eventually("what the first one had is closed", func() bool { return openFDs(t) == before+len(fds) })
}

// share gives the first client its ends of the socket and of the log, and dies.
func (b *fakeBridge) share() {
	client := -1
	for client < 0 {
		client, _, _ = unix.Accept4(b.fds[wire.FDListener], unix.SOCK_CLOEXEC)
		time.Sleep(5 * time.Millisecond)
	}
	raw, err := b.conn.SyscallConn()
	if err != nil {
		say("share: %v", err)
		return
	}
	raw.Control(func(fd uintptr) {
		err = unix.Sendmsg(client, []byte("x"), unix.UnixRights(int(fd), 2), nil, 0)
	})
	say("shared: %v", err)
	unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGKILL)
}

// R33: a broker that stops leaves a bridge alone that it has just started: it
// has the pipes, and nobody else will.
func TestStopWhileBridgeStarts(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "slow")
	s.kill(int(info.BridgePID))
	s.eventually("the next bridge has them", func() bool { return strings.Count(s.log.String(), `line="serves [1000]"`) == 2 })
	started, err := m.Inspect(Of("one"), info.Session)
	if err != nil {
		t.Fatal(err)
	}
	m.cancel() // what Close does when it has waited long enough
	m.Close()
	m = s.manager()
	s.eventually("the next broker finds it", func() bool {
		return s.said("spares_not_regained")() || s.said("session_unattached")()
	})
	if i, err := m.Inspect(Of("one"), info.Session); err != nil || i.State != wire.StateRunning || i.BridgePID != started.BridgePID {
		t.Errorf("got %+v, %v", i, err)
	}
	s.delete(m, info.Session)
}

// R33: a bridge that dies while the disk is full is replaced when there is room.
func TestBridgeDiesOnFullDisk(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "")
	// It has no inode but its root's.
	if err := unix.Mount("tmpfs", s.l.Records(), "tmpfs", 0, "size=4k,nr_inodes=1,mode=0700"); err != nil {
		t.Fatal(err)
	}
	free := func() { unix.Unmount(s.l.Records(), unix.MNT_DETACH) }
	defer free()
	s.kill(int(info.BridgePID))
	s.eventually("many tries", func() bool {
		return strings.Count(s.log.String(), "bridge_failed") > maxRestarts+1 || s.hasState(m, info.Session, wire.StateUnattached)()
	})
	free()
	s.eventually("another bridge", func() bool {
		return s.said("bridge_replaced")() || s.hasState(m, info.Session, wire.StateUnattached)()
	})
	if !s.hasState(m, info.Session, wire.StateRunning)() {
		t.Error("the session does not run")
	}
	s.delete(m, info.Session)
}

// R19: the kernel refuses what a bridge sends the broker beside its words, where
// it can: to close it might take long.
func TestBridgeSendsNoDescriptors(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "smuggling")
	defer s.delete(m, info.Session)
	s.eventually("tried", s.said("line=smuggled"))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if known := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) == nil; known != s.said("refused: ")() {
		t.Errorf("the kernel can refuse: %v", known)
	}
}

// R32: a socket of a dead bridge's that is read without end, because what came
// with its words can't be closed, holds no deletion up for ever.
func TestDeletionDoesNotWaitForReader(t *testing.T) {
	s := newSystem(t)
	m := s.manager()
	info := s.create(m, "")
	found := m.sessions[info.Session]
	reads := make(chan struct{})
	found.turn <- struct{}{}
	found.bridge.done = reads
	found.release()
	s.kill(int(info.BridgePID))
	s.eventually("seen", s.said("bridge_died"))
	deleted := make(chan error, 1)
	go func() { deleted <- m.Delete(context.Background(), Operator(), info.Session) }()
	select {
	case err := <-deleted:
		if wire.CodeOf(err) != wire.CodeInternal {
			t.Errorf("got %v", err)
		}
		close(reads)
	case <-time.After(3 * killTimeout):
		t.Error("it waits")
		close(reads)
		<-deleted
	}
	s.delete(m, info.Session)
}

// R33: a bridge that says nothing, as one that is stopped, is killed and
// replaced from the spares.
func TestSilentBridgeIsReplaced(t *testing.T) {
	s := newSystem(t)
	defer func(d time.Duration) { hangTimeout = d }(hangTimeout)
	hangTimeout = 2 * time.Second
	m := s.manager()
	defer m.Close() // before the limit is put back
	var info wire.SessionInfo
	// On a slow machine a bridge may not be ready within the limit.
	s.eventually("a session", func() (made bool) {
		var err error
		info, err = m.Create(context.Background(), s.config.Deployments["one"], wire.Create{ID: 1, Workspace: "project"})
		return err == nil
	})
	s.eventually("noticed", s.said("has said nothing"))
	s.eventually("another bridge", s.said("bridge_replaced"))
	s.delete(m, info.Session)
}

// R31 R33: a reaper that dies takes nothing along but the exit status. The
// bridge is told so, and the sandbox's end is seen, by this broker and the next.
func TestReaperDies(t *testing.T) {
	for name, restart := range map[string]bool{"and its broker lives": false, "and its broker too": true} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t)
			m := s.manager()
			info := s.create(m, "")
			// The fake sandbox is its own reaper: here another process is.
			reaper := exec.Command("sleep", "1000")
			if err := reaper.Start(); err != nil {
				t.Fatal(err)
			}
			held, err := process.Open(reaper.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			ses := m.sessions[info.Session]
			ses.cancel()
			m.Close()
			if err := ses.m.store.Save(withReaper(ses.rec, held.ID())); err != nil {
				t.Fatal(err)
			}
			if !restart {
				m = s.manager()
			}
			reaper.Process.Kill()
			reaper.Wait()
			held.Close()
			if restart {
				m = s.manager()
			}
			s.eventually("noticed", s.said("reaper_died"))
			ses = m.sessions[info.Session]
			if _, ok := ses.answer(nil, wire.BridgeExit{ID: 1, Exit: wire.Exit{Code: unobserved, Reason: wire.ReasonUnknown}}).(wire.ErrorMessage); !ok {
				t.Error("the bridge was told that the sandbox has ended")
			}
			if s.said("bridge_refused")() {
				t.Error("the log has a line for each time that the bridge asks")
			}
			if !s.hasState(m, info.Session, wire.StateRunning)() {
				t.Error("the session does not run")
			}
			s.killSandbox(info.Session)
			s.eventually("ended", s.hasState(m, info.Session, wire.StateExited))
			if i, err := m.Inspect(Operator(), info.Session); err != nil || i.Exit.Reason != wire.ReasonUnknown || i.Exit.Code != unobserved {
				t.Errorf("got %+v, %v", i.Exit, err)
			}
			s.delete(m, info.Session)
		})
	}
}

func withReaper(r record.Record, id process.ID) record.Record {
	r.Reaper = id
	return r
}
