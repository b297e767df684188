package session

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/journal"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

const (
	// After the agent's exit a process that it left behind may hold its
	// output open. The streams are read until they have been quiet for
	// drainQuiet, and for at most drainMost while they are being read.
	drainQuiet = time.Second
	drainMost  = 10 * time.Second
	drainTick  = 20 * time.Millisecond

	// reasonPatience is how long an end without a status waits for a broker.
	reasonPatience = 30 * time.Second

	// unknownCode is the exit code when the status was not observed.
	unknownCode = 255
	// killedCode is that of a sandbox that the kernel killed: 128 and KILL.
	killedCode = 137
)

// watchExit waits for the agent's end and records it. Each step is done again
// by a bridge that recovers from the middle.
func (s *Session) watchExit() {
	var exit wire.Exit
	if s.exit == nil {
		if !s.spliceStatus() || !s.confirmEnd() {
			return
		}
		s.endInput()
		// The broker gives the reason and ends what is left in the sandbox.
		exit = s.askReason()
		if !s.drain() {
			return
		}
	}
	// With the exit in the log, what the streams held then was taken before.
	s.stdout.Close()
	s.stderr.Close()
	if !s.stdout.Finish(s.stop) || !s.stderr.Finish(s.stop) {
		return
	}
	s.recordExit(exit)
}

// spliceStatus takes the exit status into its file until the pipe's end. It
// reports false when the session is stopped before.
func (s *Session) spliceStatus() bool {
	for {
		_, err := s.cfg.Set.Exit.SpliceTo(s.cfg.Set.ExitSpool, wire.MaxExitStatus)
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return true
		case errors.Is(err, os.ErrClosed):
			return false
		default:
			s.log.Error("exit_status_stalled", "error", err.Error())
			if !s.sleep(retryInput) {
				return false
			}
		}
	}
}

// confirmEnd waits until the agent has really ended. A pipe that ends without a
// status means that the sandbox was killed, or only its reaper: then the agent
// goes on, and the broker says so. Without a broker the streams tell: nobody
// but the sandbox has their other ends. It reports false when the session is
// stopped before.
func (s *Session) confirmEnd() bool {
	for warned := false; ; warned = true {
		status, exit := s.observed()
		if len(status) > 0 {
			return true
		}
		m, err := s.tellExit(status, exit)
		if _, ended := m.(wire.BridgeExitReason); ended {
			return true
		}
		code := wire.CodeOf(err)
		silent := code == wire.CodeBrokerUnreachable || code == wire.CodeTimeout
		if silent && isClosed(s.stdout.Done()) && isClosed(s.stderr.Done()) {
			return true
		}
		if !warned {
			s.log.Warn("exit_status_lost", "reason", "the exit pipe has ended, and the agent may not have", "error", errText(err))
		}
		if !s.sleep(retryInput) {
			return false
		}
	}
}

// sleep waits between two tries; false means that the session is stopped.
func (s *Session) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.stop:
		return false
	}
}

// endInput refuses inputs from now on and waits for the input pump, so that
// what was delivered is final.
func (s *Session) endInput() {
	s.mu.Lock()
	s.gone = true
	s.mu.Unlock()
	if s.cfg.Set.Stdin != nil {
		s.cfg.Set.Stdin.Close()
	}
	s.input.wakeUp()
	select {
	case <-s.input.drained:
	case <-s.stop:
	}
}

// askReason reports the exit to the broker and returns it with the reason that
// the broker gives. Without one it keeps what the status itself tells.
func (s *Session) askReason() wire.Exit {
	status, exit := s.observed()
	m, err := s.reportExit(status, exit)
	if answer, ok := m.(wire.BridgeExitReason); ok {
		exit.Reason = answer.Reason
	} else {
		s.log.Warn("exit_reason_unknown", "error", errText(err))
	}
	if exit.Reason == wire.ReasonOutOfMemory && exit.Code == unknownCode {
		exit.Code, exit.Signal = killedCode, "KILL"
	}
	return exit
}

// observed returns the status, and what it tells of the exit.
func (s *Session) observed() (status []byte, exit wire.Exit) {
	status = s.readStatus()
	exit = parseStatus(status)
	exit.InputDelivered = uint64(s.input.delivered.Load())
	s.mu.Lock()
	defer s.mu.Unlock()
	exit.InputAccepted = uint64(s.data.End())
	return status, exit
}

func (s *Session) tellExit(status []byte, exit wire.Exit) (wire.Message, error) {
	return s.cfg.Broker.Ask(brokerTimeout, func(id uint64) wire.Message {
		return wire.BridgeExit{ID: id, Status: status, Exit: exit}
	})
}

// reportExit asks the broker. An end that nobody saw the status of has no
// explanation but the broker's, so a broker that is being restarted is waited
// for.
func (s *Session) reportExit(status []byte, exit wire.Exit) (wire.Message, error) {
	deadline := time.Now().Add(reasonPatience)
	for {
		m, err := s.tellExit(status, exit)
		lost := wire.CodeOf(err) == wire.CodeBrokerUnreachable
		if !lost || exit.Reason != wire.ReasonUnknown || time.Now().After(deadline) || !s.sleep(retryInput) {
			return m, err
		}
	}
}

func errText(err error) string {
	if err == nil {
		return "the broker's answer has no reason"
	}
	return err.Error()
}

func (s *Session) readStatus() []byte {
	n, err := s.cfg.Set.ExitSpool.Offset()
	if err != nil {
		s.log.Error("exit_status_unreadable", "error", err.Error())
		return []byte{}
	}
	status := make([]byte, min(n, wire.MaxExitStatus))
	if _, err := s.cfg.Set.ExitRead.ReadAt(status, 0); err != nil {
		s.log.Error("exit_status_unreadable", "error", err.Error())
		return []byte{}
	}
	return status
}

// parseStatus reads what the reaper writes: {"id":…,"exitStatus":N}, where N
// is 128+n for a process that signal n ended. Nothing, or something else,
// means that the status was not observed.
func parseStatus(status []byte) wire.Exit {
	var s struct {
		ExitStatus *int64 `json:"exitStatus"`
	}
	if err := json.Unmarshal(status, &s); err != nil || s.ExitStatus == nil || *s.ExitStatus < 0 || *s.ExitStatus > 255 {
		return wire.Exit{Code: unknownCode, Reason: wire.ReasonUnknown}
	}
	exit := wire.Exit{Code: *s.ExitStatus, Reason: wire.ReasonExited}
	if exit.Code > 128 {
		exit.Signal = strings.TrimPrefix(unix.SignalName(syscall.Signal(exit.Code-128)), "SIG")
	}
	return exit
}

// drain reads what the streams still give. It waits without end for a client
// to make room, and reports false when the session is stopped.
func (s *Session) drain() bool {
	var spent time.Duration
	for {
		ended := isClosed(s.stdout.Done()) && isClosed(s.stderr.Done())
		quiet := (isClosed(s.stdout.Done()) || s.stdout.Quiet(drainQuiet)) &&
			(isClosed(s.stderr.Done()) || s.stderr.Quiet(drainQuiet))
		if ended || quiet {
			return true
		}
		if spent > drainMost {
			s.log.Warn("output_cut", "reason", "a process outlived the agent and goes on writing")
			return true
		}
		if !s.sleep(drainTick) {
			return false
		}
		if !s.stdout.Stalled() && !s.stderr.Stalled() {
			spent += drainTick
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// recordExit writes the exit to the log, unless it is there, and then gives it
// the last sequence.
func (s *Session) recordExit(exit wire.Exit) {
	for {
		err := s.tryRecordExit(exit)
		if err == nil {
			break
		}
		s.log.Error("exit_unrecorded", "error", err.Error())
		if !s.sleep(retryInput) {
			return
		}
	}
	close(s.ended)
	s.wakeClients()
	s.log.Info("agent_exited", "code", s.exit.Code, "signal", s.exit.Signal, "reason", string(s.exit.Reason))
}

func (s *Session) tryRecordExit(exit wire.Exit) error {
	if err := s.logExit(exit); err != nil {
		return err
	}
	length := uint32(len(s.exitRecord()))
	return s.index.Append(wire.StreamExit, 1, func(int) (uint32, wire.Flags) { return length, 0 }, nil)
}

func (s *Session) logExit(exit wire.Exit) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exit != nil {
		return nil
	}
	data, err := wire.EncodeExit(exit)
	if err != nil {
		return err
	}
	if err := s.control.Append(journal.Exit{Data: data}); err != nil {
		return err
	}
	s.exit, s.exitData = &exit, data
	return nil
}

// exitRecord returns the data of the exit record.
func (s *Session) exitRecord() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.exitData
}

// visibleExit returns the exit once its record has a sequence.
func (s *Session) visibleExit() *wire.Exit {
	if !isClosed(s.ended) {
		return nil
	}
	return s.exit
}
