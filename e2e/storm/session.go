package storm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// names are those of the streams; what the agent prints is never what it reads.
var names = streams{Stdout: 0x0a, Stderr: 0x0b, Stdin: 0x0c}

// Profiles is the profile of the storm's agents.
var Profiles = fmt.Sprintf(`
[profiles.storm]
kind = "program"
framing = "lines"
command = ["/workload", "%x", "%x", "%x"]
`, names.Stdout, names.Stderr, names.Stdin)

const (
	// patience bounds each wait: a machine may be loaded.
	patience = 3 * time.Minute
	tick     = 5 * time.Millisecond
	// autopsyPatience bounds the look at a session that is stuck.
	autopsyPatience = 10 * time.Second
)

// session is an agent and its daemon.
type session struct {
	system *harness.System
	info   wire.SessionInfo
	config daemonConfig
	daemon *exec.Cmd
	stderr *bytes.Buffer
	done   chan struct{} // closed when the daemon is dead
	// orphaned says that the reaper was killed.
	orphaned bool
}

// start creates a session and starts its daemon.
func start(ctx context.Context, system *harness.System) (*session, error) {
	b, err := client.DialBroker(ctx, system.BrokerSocket())
	if err != nil {
		return nil, err
	}
	defer b.Close()
	info, err := b.Create(ctx, client.CreateOptions{Workspace: "project", Profile: "storm"})
	if err != nil {
		return nil, err
	}
	s := &session{system: system, info: info, config: daemonConfig{
		Socket: b.SessionSocket(info), Names: names, Dir: filepath.Join(system.Prefix, "daemon-"+string(info.Session)),
	}}
	if err := os.Mkdir(s.config.Dir, 0o700); err != nil {
		return nil, err
	}
	uid := int(system.PeerUID())
	if err := os.Chown(s.config.Dir, uid, uid); err != nil {
		return nil, err
	}
	return s, s.startDaemon()
}

// startDaemon runs our own executable as the deployment's user.
func (s *session) startDaemon() error {
	config, err := json.Marshal(s.config)
	if err != nil {
		return err
	}
	uid := s.system.PeerUID()
	s.stderr = &bytes.Buffer{}
	s.daemon = exec.Command("/proc/self/exe")
	s.daemon.Env, s.daemon.Dir, s.daemon.Stderr = []string{daemonVariable + "=" + string(config)}, "/", s.stderr
	s.daemon.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Setpgid: true}
	if err := s.daemon.Start(); err != nil {
		return fmt.Errorf("start a daemon: %w", err)
	}
	cmd, done := s.daemon, make(chan struct{})
	s.done = done
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ended is in its ProcessState
	}()
	return nil
}

// killDaemon kills the daemon, which leaves its ledger alone.
func (s *session) killDaemon() {
	_ = s.daemon.Process.Kill() // it may be dead
	<-s.done
}

// fault is what the daemon died of, if it did by itself.
func (s *session) fault() error {
	select {
	case <-s.done:
	default:
		return nil
	}
	if s.daemon.ProcessState.Success() {
		return nil
	}
	return fmt.Errorf("the daemon of session %s, %s, says: %s", s.info.Session, s.daemon.ProcessState, s.stderr)
}

// await polls until the condition holds, and fails with the daemon.
func (s *session) await(ctx context.Context, what string, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		done, err := ok()
		if err = errors.Join(err, s.fault()); err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("session %s: not in time: %s\n%s", s.info.Session, what, s.autopsy())
		case <-time.After(tick):
		}
	}
}

// autopsy is what a session that does not get on looks like from outside: the
// bridge's status, and the goroutines of the daemon, which it ends.
func (s *session) autopsy() string {
	ctx, cancel := context.WithTimeout(context.Background(), autopsyPatience)
	defer cancel()
	var status wire.Status
	c, err := client.DialSession(ctx, s.config.Socket)
	if err == nil {
		status, err = c.Inspect(ctx)
		c.Close()
	}
	_ = s.daemon.Process.Signal(syscall.SIGQUIT) // it may be dead
	<-s.done
	return fmt.Sprintf("the bridge says %+v, %v; the daemon: %s", status, err, s.stderr)
}

// ledger is what the daemon knows.
func (s *session) ledger() (ledger, error) { return loadLedger(s.config.Dir) }

// moves waits until all three streams have moved on: the last death is behind.
func (s *session) moves(ctx context.Context) error {
	before, err := s.ledger()
	if err != nil {
		return err
	}
	return s.await(ctx, "all streams move", func() (bool, error) {
		now, err := s.ledger()
		return now.Stdout.Bytes > before.Stdout.Bytes && now.Stderr.Bytes > before.Stderr.Bytes && now.Inputs > before.Inputs, err
	})
}

// inspect asks whatever broker runs now.
func (s *session) inspect(ctx context.Context) (wire.SessionInfo, error) {
	b, err := client.DialBroker(ctx, s.system.AdminSocket())
	if err != nil {
		return wire.SessionInfo{}, err
	}
	defer b.Close()
	return b.Inspect(ctx, s.info.Session)
}

// reaper is the pid of the session's reaper, by its record.
func (s *session) reaper() (int, error) {
	b, err := os.ReadFile(filepath.Join(s.system.Prefix, "var", "sessions", string(s.info.Session)+".json"))
	if err != nil {
		return 0, err
	}
	var r struct{ Reaper struct{ PID int } }
	err = json.Unmarshal(b, &r)
	return r.Reaper.PID, err
}

// logged reports whether the broker has said this of the session, after the
// place in its log.
func (s *session) logged(words string, from int64) (bool, error) {
	b, err := os.ReadFile(s.system.BrokerLog())
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(b[min(int(from), len(b)):])) {
		if strings.Contains(line, words) && strings.Contains(line, string(s.info.Session)) {
			return true, nil
		}
	}
	return false, nil
}

// logEnd is the place in the broker's log where it ends now.
func logEnd(system *harness.System) (int64, error) {
	st, err := os.Stat(system.BrokerLog())
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// stop lets the daemon close the input, and waits for its end, which is that
// of the session.
func (s *session) stop(ctx context.Context) error {
	if err := os.WriteFile(filepath.Join(s.config.Dir, stopFile), nil, 0o644); err != nil {
		return err
	}
	return s.await(ctx, "the daemon has read the exit", func() (bool, error) {
		select {
		case <-s.done:
			return true, nil
		default:
			return false, nil
		}
	})
}

// verify compares what the daemon has with what the agent says at its end.
func (s *session) verify() error {
	l, err := s.ledger()
	if err != nil {
		return err
	}
	if l.Verdict == nil || l.Exit == nil || len(l.Cut) > 0 {
		return fmt.Errorf("session %s has not ended whole: verdict %v, exit %v, cut %v", s.info.Session, l.Verdict, l.Exit, l.Cut)
	}
	v, want := *l.Verdict, wire.Exit{Reason: wire.ReasonExited}
	if s.orphaned {
		want.Code, want.Reason = 255, wire.ReasonUnknown
	}
	want.InputAccepted, want.InputDelivered = l.Stdin.Bytes, l.Stdin.Bytes
	if v.Fault != "" || v.Stdout != l.Stdout || v.Stderr != l.Stderr || v.Stdin != l.Stdin || *l.Exit != want {
		return fmt.Errorf("session %s: the agent says %+v, the daemon has stdout %+v, stderr %+v, stdin %+v; exit %+v, want %+v", s.info.Session, v, l.Stdout, l.Stderr, l.Stdin, *l.Exit, want)
	}
	return nil
}

// remove deletes the session.
func (s *session) remove(ctx context.Context) error {
	b, err := client.DialBroker(ctx, s.system.AdminSocket())
	if err != nil {
		return err
	}
	defer b.Close()
	return b.Delete(ctx, s.info.Session)
}
