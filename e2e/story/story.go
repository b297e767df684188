package story

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Options of a run.
type Options struct {
	// Bin is the folder of the built programs.
	Bin string
	// Say gets each step as a sentence.
	Say func(format string, args ...any)
	// Intercept, if set, returns the socket that daemons use instead of the
	// session's own. Tests break a feature with it.
	Intercept func(socket string) (string, error)
	// BetweenDaemons, if set, runs after the kill.
	BetweenDaemons func(context.Context, *harness.System, wire.SessionInfo) error
	// KeepSession ends the story with the session running, so that something
	// is left behind to be found.
	KeepSession bool
}

// awaitTimeout bounds the wait for one step of a daemon; Pi's first answer
// takes a few seconds on a busy machine.
const awaitTimeout = 60 * time.Second

type teller struct {
	options  Options
	system   *harness.System
	stateDir string
	// socket replaces the session's socket when an Intercept is set.
	socket string
	info   wire.SessionInfo
	report *Report
}

// Run tells the story and cleans up. The report is complete even when an error
// ended the story early: what was not observed stays false.
func Run(ctx context.Context, o Options) Report {
	r := Report{}
	if err := run(ctx, o, &r); err != nil {
		r.Error = err.Error()
	}
	r.judge()
	return r
}

func run(ctx context.Context, o Options, r *Report) (err error) {
	o.Say("starting a broker in a temporary prefix")
	h := harness.Options{Bin: o.Bin}
	if o.Intercept != nil {
		// What stands between is this process, so root must be let in.
		h.PeerUIDs = []uint32{harness.DefaultPeerUID, 0}
	}
	system, err := harness.New(h)
	if err != nil {
		return err
	}
	t := &teller{options: o, system: system, report: r, stateDir: filepath.Join(system.Prefix, "daemon")}
	defer func() {
		if closeErr := system.Close(); closeErr != nil && err == nil {
			err = closeErr
		}
	}()
	if err := t.prepare(ctx); err != nil {
		return err
	}
	if err := t.tell(ctx); err != nil && ctx.Err() != nil {
		return fmt.Errorf("interrupted; everything was removed again: %w", ctx.Err())
	} else if err != nil {
		return fmt.Errorf("%w\nthe broker's log ends with:\n%s", err, system.LogTail())
	}
	return t.lookForLeftovers(ctx)
}

func (t *teller) prepare(ctx context.Context) error {
	if err := os.Mkdir(t.stateDir, 0o700); err != nil {
		return err
	}
	uid := int(t.system.PeerUID())
	if err := os.Chown(t.stateDir, uid, uid); err != nil {
		return err
	}
	return t.system.StartBroker(ctx)
}

func (t *teller) tell(ctx context.Context) error {
	e := &t.report.Evidence
	one, err := t.start(ctx, roleFirst)
	if err != nil {
		return err
	}
	defer one.kill()
	if err := t.firstDaemon(ctx, one); err != nil {
		return err
	}
	if err := t.secondWriter(ctx); err != nil {
		return err
	}
	if err := t.killFirst(ctx, one); err != nil {
		return err
	}
	two, err := t.start(ctx, roleSecond)
	if err != nil {
		return err
	}
	defer two.kill()
	e.After.DaemonPID = two.pid()
	return t.secondDaemon(ctx, two)
}

func (t *teller) firstDaemon(ctx context.Context, one *process) error {
	e := &t.report.Evidence
	e.Before.DaemonPID = one.pid()
	t.options.Say("daemon one (pid %d, uid %d) asks for a sandboxed Pi", one.pid(), t.system.PeerUID())
	created, err := one.await(ctx, "created")
	if err != nil {
		return err
	}
	t.info = *created.Session
	t.options.Say("session %s runs: sandbox pid %d, bridge pid %d", t.info.Session, t.info.SandboxPID, t.info.BridgePID)
	attached, err := one.await(ctx, "attached")
	if err != nil {
		return err
	}
	e.Before.Generation = attached.Generation
	pi, err := one.await(ctx, "pi")
	if err != nil {
		return err
	}
	e.Before.PiSession = pi.Text
	t.options.Say("Pi answers get_state: session %s", pi.Text)
	dialog, err := one.await(ctx, "dialog")
	if err != nil {
		return err
	}
	e.DialogID = dialog.Text
	t.options.Say("an extension asks for a confirmation (%s), which nobody answers yet", dialog.Text)
	acked, err := one.await(ctx, "acked")
	if err != nil {
		return err
	}
	e.Before.Cursor = Cursor(acked.Cursor)
	unacked, err := one.await(ctx, "unacked")
	if err != nil {
		return err
	}
	e.Unacked = unacked.Record
	t.options.Say("a long bash command runs; daemon one acked %d, received %d and has not acked it", acked.Cursor.Sequence, unacked.Record.Sequence)
	return nil
}

func (t *teller) secondWriter(ctx context.Context) error {
	rival, err := t.start(ctx, roleRival)
	if err != nil {
		return err
	}
	defer rival.kill()
	answer, err := rival.await(ctx, "rival")
	if err != nil {
		return err
	}
	t.report.Evidence.SecondWriter = answer.Text
	t.options.Say("a second writer is answered: %s", answer.Text)
	return nil
}

// killFirst takes what is known before the kill, kills, and watches the
// command go on with no daemon there.
func (t *teller) killFirst(ctx context.Context, one *process) error {
	e := &t.report.Evidence
	before, err := t.inspect(ctx, t.info.Session)
	if err != nil {
		return err
	}
	fill(&e.Before, before)
	one.kill()
	e.TicksAtKill = t.lines("ticks")
	t.options.Say("daemon one is killed with SIGKILL at tick %d", e.TicksAtKill)
	err = poll(ctx, "the command to go on without a daemon", func() bool { return t.lines("ticks") >= e.TicksAtKill+5 })
	e.TicksAlone = t.lines("ticks")
	if err != nil {
		return err
	}
	t.options.Say("no daemon lives, and the command goes on: tick %d", e.TicksAlone)
	if t.options.BetweenDaemons != nil {
		return t.options.BetweenDaemons(ctx, t.system, before)
	}
	return nil
}

func (t *teller) secondDaemon(ctx context.Context, two *process) error {
	e := &t.report.Evidence
	found, err := two.await(ctx, "found")
	if err != nil {
		return err
	}
	after, err := t.inspect(ctx, found.Session.Session)
	if err != nil {
		return err
	}
	fill(&e.After, after)
	t.options.Say("daemon two (pid %d) finds the session: sandbox pid %d, bridge pid %d", two.pid(), after.SandboxPID, after.BridgePID)
	for _, step := range []struct {
		name  string
		heard func(event)
	}{
		{"attached", func(v event) { e.After.Generation = v.Generation }},
		{"resumed", func(v event) {
			t.options.Say("it attaches as writer %d at its durable cursor %d", e.After.Generation, v.Cursor.Sequence)
		}},
		{"pending", func(v event) { e.DialogPending = v.Yes }},
		{"replayed", func(v event) {
			e.Replayed, e.Suppressed, e.ProcessedTwice = v.Record, v.Count, 0
			if v.Yes {
				e.ProcessedTwice = 1
			}
			t.options.Say("record %d is replayed and recognised as a duplicate", v.Record.Sequence)
		}},
		{"resent", func(v event) {
			e.ResentDuplicate, e.OnceLines = v.Yes, t.lines("once")
			t.options.Say("an input sent again is a duplicate: %v; it took effect %d time(s)", v.Yes, e.OnceLines)
		}},
		{"stale", func(v event) { e.StaleLease = v.Text }},
		{"answered", func(v event) {
			e.StaleEffect = t.lines("stale") > 0
			t.options.Say("the dead daemon's lease is answered: %s", e.StaleLease)
			e.DialogResult = v.Text
			t.options.Say("the pending dialog is answered, and the extension says %q", v.Text)
		}},
		{"cancelled", func(v event) {
			e.BashResult = v.Text
			t.options.Say("abort_bash: the command that daemon one started is %s", v.Text)
		}},
		{"pi", func(v event) {
			e.After.PiSession = v.Text
			t.options.Say("Pi's session is %s", v.Text)
		}},
		{"exit", func(v event) {
			e.ExitCode, e.ExitReason, e.After.Cursor = v.Exit.Code, v.Exit.Reason, Cursor(v.Cursor)
			t.options.Say("input is closed; Pi ends with code %d, the last record is %d", v.Exit.Code, v.Cursor.Sequence)
		}},
		{"deleted", func(event) { t.options.Say("daemon two deletes the session") }},
	} {
		if step.name == "exit" && t.options.KeepSession {
			break
		}
		v, err := two.await(ctx, step.name)
		if err != nil {
			return err
		}
		step.heard(v)
	}
	return two.wait(ctx)
}

// lookForLeftovers asks broker, runsc and kernel what is still there: first
// with the broker, which must have let go of everything, then without.
func (t *teller) lookForLeftovers(ctx context.Context) error {
	e := &t.report.Evidence
	containers, err := t.system.Containers(ctx)
	if err != nil {
		return err
	}
	left, err := t.system.Leftovers()
	if err != nil {
		return err
	}
	if err := t.system.StopBroker(syscall.SIGTERM); err != nil {
		return err
	}
	more, err := t.system.Leftovers()
	if err != nil {
		return err
	}
	e.Containers, e.LeftBehind, e.Checked = containers, append(append([]string{}, left...), more...), true
	t.options.Say("runsc knows %d containers; left behind: %d things", len(containers), len(e.LeftBehind))
	return nil
}

// inspect asks the broker from beside, as an operator would.
func (t *teller) inspect(ctx context.Context, id wire.SessionID) (wire.SessionInfo, error) {
	b, err := client.DialBroker(ctx, t.system.AdminSocket())
	if err != nil {
		return wire.SessionInfo{}, err
	}
	defer b.Close()
	return b.Inspect(ctx, id)
}

func fill(s *Side, info wire.SessionInfo) {
	s.Container = info.Container
	s.SandboxPID, s.SandboxStart = info.SandboxPID, info.SandboxStart
	s.BridgePID, s.BridgeStart = info.BridgePID, info.BridgeStart
	s.Alive = harness.Alive(info.SandboxPID, info.SandboxStart) && harness.Alive(info.BridgePID, info.BridgeStart)
}

// lines counts the lines of a file of the workspace, as the host sees it.
func (t *teller) lines(name string) int {
	b, err := os.ReadFile(filepath.Join(t.system.WorkspaceDir("project"), name))
	if err != nil {
		return 0
	}
	return bytes.Count(b, []byte("\n"))
}

func poll(ctx context.Context, what string, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	for !done() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}
