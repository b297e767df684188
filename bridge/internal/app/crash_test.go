package app_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/rig"
	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// killed is a bridge in a process of its own.
type killed struct {
	*rig.Broker
	cmd   *exec.Cmd
	pidfd int
}

func launch(t testing.TB, r *rig.Rig) *killed {
	t.Helper()
	local, remote, err := fdpass.Pair()
	if err != nil {
		t.Fatal(err)
	}
	end := os.NewFile(uintptr(remote), "link")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"=1")
	cmd.ExtraFiles = []*os.File{end}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end.Close()
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := &killed{Broker: r.Serve(local), cmd: cmd, pidfd: pidfd}
	return b
}

// kill ends the bridge and returns when the kernel says that it is dead: only
// then may another splice the same descriptions.
func (k *killed) kill(t testing.TB) {
	t.Helper()
	if err := unix.PidfdSendSignal(k.pidfd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	poll := []unix.PollFd{{Fd: int32(k.pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, int(rig.Timeout.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n != 1 {
			t.Fatalf("the bridge does not die: %d, %v", n, err)
		}
		break
	}
	unix.Close(k.pidfd)
	_ = k.cmd.Wait()
	k.Close()
}

// replace kills the bridge and starts the next.
func (k *killed) replace(t testing.TB, r *rig.Rig) *killed {
	k.kill(t)
	return launch(t, r)
}

// lines is an endless reproducible stream: lines of all lengths, with every
// byte value.
type lines struct {
	rng   *rand.Rand
	bytes *rand.ChaCha8
}

func newLines(seed byte) lines {
	source := rand.NewChaCha8([32]byte{seed})
	return lines{rand.New(source), source}
}

func (l lines) next() []byte {
	n := l.rng.IntN(300)
	if l.rng.IntN(50) == 0 {
		n = l.rng.IntN(700 << 10)
	}
	b := make([]byte, n+1)
	_, _ = l.bytes.Read(b) // it never fails
	for at := bytes.IndexByte(b, '\n'); at >= 0; at = bytes.IndexByte(b, '\n') {
		b[at] = 0
	}
	b[n] = '\n'
	return b
}

// produce writes the stream until stop is closed, then a last line without its
// end, and closes.
func produce(w *os.File, seed byte, stop <-chan struct{}) error {
	defer w.Close()
	l := newLines(seed)
	for {
		select {
		case <-stop:
			_, err := w.WriteString("tail")
			return err
		default:
		}
		if _, err := w.Write(l.next()); err != nil {
			return err
		}
	}
}

// verifier compares records with the stream that was produced.
type verifier struct {
	lines lines
	count int
	tail  bool
}

func (v *verifier) check(data []byte) error {
	if v.tail {
		return errors.New("a record follows the last line")
	}
	want := v.lines.next()
	if bytes.Equal(data, want) {
		v.count++
		return nil
	}
	if string(data) == "tail" {
		v.tail = true
		return nil
	}
	return fmt.Errorf("line %d is %d bytes, want %d", v.count, len(data), len(want))
}

// daemon is a writer that reconnects, keeps its durable cursor, and sends
// inputs again that it does not know to be accepted.
type daemon struct {
	r        *rig.Rig
	cursor   uint64
	streams  map[wire.Stream]*verifier
	exit     bool
	ledger   *ledger
	inputs   lines
	unsent   [][]byte // inputs not known to be accepted
	accepted int
	again    int  // duplicates
	ended    bool // no input is taken any more
	stop     <-chan struct{}
}

const window = 4

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (d *daemon) run() error {
	for !d.exit {
		c := d.r.Connection()
		if c == nil {
			if _, err := os.Stat(d.r.SocketPath()); err != nil {
				return err
			}
			continue
		}
		if err := d.connection(c); err != nil {
			return err
		}
	}
	return nil
}

// connection serves one connection until it breaks, which is no error.
func (d *daemon) connection(c *rig.Client) error {
	defer c.Close()
	attach := wire.Attach{ID: 1, Mode: wire.ModeWriter, From: wire.FromOldest, Takeover: true}
	if d.cursor > 0 {
		attach.From, attach.Cursor = wire.FromCursor, &wire.Cursor{Epoch: d.r.Epoch, Sequence: d.cursor}
	}
	if c.Conn.WriteMessage(attach) != nil {
		return nil
	}
	sent := 0
	var id uint64 = 1
	for !d.exit {
		before := len(c.Records)
		if err := c.Step(); err != nil {
			var e *wire.Error
			if errors.As(err, &e) && e.Code != wire.CodeFrameTruncated {
				return err
			}
			return nil
		}
		for _, rec := range c.Records[before:] {
			if err := d.record(rec); err != nil {
				return err
			}
		}
		c.Records = nil
		for {
			m, e := c.Answer()
			if e != nil && e.Code == wire.CodeRuntimeNotWritable && isClosed(d.stop) {
				// The agent has exited with inputs on their way.
				d.ended = true
				continue
			}
			if e != nil {
				return e
			}
			if m == nil {
				break
			}
			switch m := m.(type) {
			case wire.Attached:
				c.Attached = m
			case wire.Accepted:
				d.unsent = d.unsent[1:]
				d.accepted++
				sent--
				if m.Duplicate {
					d.again++
				}
			}
		}
		if c.Attached.Lease == "" {
			continue
		}
		id++
		if c.Conn.WriteMessage(wire.Ack{ID: id, Lease: c.Attached.Lease, Cursor: wire.Cursor{Epoch: d.r.Epoch, Sequence: d.cursor}}) != nil {
			return nil
		}
		for ; sent < window; sent++ {
			if sent == len(d.unsent) && !isClosed(d.stop) {
				d.unsent = append(d.unsent, d.inputs.next())
			}
			if sent == len(d.unsent) || d.ended {
				break
			}
			if c.TrySendInput(&id, fmt.Sprint("input ", d.accepted+sent), d.unsent[sent]) != nil {
				return nil
			}
		}
	}
	return nil
}

func (d *daemon) record(rec rig.Record) error {
	if rec.Pending {
		return nil
	}
	if rec.Sequence != d.cursor+1 {
		return fmt.Errorf("record %d came after %d", rec.Sequence, d.cursor)
	}
	d.cursor = rec.Sequence
	if err := d.ledger.note(rec); err != nil {
		return err
	}
	if rec.Stream == wire.StreamExit {
		d.exit = true
		return nil
	}
	if err := d.streams[rec.Stream].check(rec.Data); err != nil {
		return fmt.Errorf("stream %d: %w", rec.Stream, err)
	}
	return nil
}

// consume reads the agent's input and compares it with the inputs.
func consume(f *os.File, seed byte) (n int, err error) {
	l := newLines(seed)
	for {
		want := l.next()
		got := make([]byte, len(want))
		m, err := io.ReadFull(f, got)
		if err == io.EOF {
			return n, nil
		}
		if err != nil || !bytes.Equal(got, want) {
			return n, fmt.Errorf("input %d: %d of %d bytes, equal %t: %v", n, m, len(want), bytes.Equal(got, want), err)
		}
		n++
	}
}

// lifetime is mostly too short to get anywhere, and sometimes long enough for
// output, input and acks to be in full flow.
func lifetime(rng *rand.Rand) time.Duration {
	if rng.IntN(4) == 0 {
		return time.Duration(rng.IntN(400_000)) * time.Microsecond
	}
	return time.Duration(rng.IntN(60_000)) * time.Microsecond
}

// R48: a bridge that is killed at any instant loses, duplicates and reorders
// no byte in either direction. R41, R43: sequences have no gap, and an input
// that is sent again arrives once.
func TestKilledBridgeLosesNothing(t *testing.T) {
	rounds := stormRounds(t, 60)
	r := rig.New(t, rig.Options{SpoolLimit: 32 << 20, MaxRecord: 1 << 20, MaxInput: 1 << 20})
	stop := make(chan struct{})
	seen := &ledger{records: make(map[uint64]uint64)}
	d := &daemon{r: r, stop: stop, ledger: seen, inputs: newLines(3), streams: map[wire.Stream]*verifier{
		wire.StreamStdout: {lines: newLines(1)}, wire.StreamStderr: {lines: newLines(2)},
	}}
	var wg sync.WaitGroup
	var consumed int
	failed := make(chan struct{})
	var once sync.Once
	spawn := func(name string, run func() error) {
		wg.Go(func() {
			if err := run(); err != nil {
				t.Errorf("%s: %v", name, err)
				once.Do(func() { close(failed) })
			}
		})
	}
	finished := make(chan struct{})
	spawn("stdout", func() error { return produce(r.AgentStdout, 1, stop) })
	spawn("stderr", func() error { return produce(r.AgentStderr, 2, stop) })
	spawn("input", func() (err error) { consumed, err = consume(r.AgentStdin, 3); return err })
	spawn("observer", func() error { return observe(r, seen, finished, failed) })
	spawn("daemon", func() error { defer close(finished); return d.run() })

	b := launch(t, r)
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	for round := range rounds {
		// From before it has recovered to well into its work.
		if rng.IntN(4) > 0 {
			b.WaitReady()
		}
		select {
		case <-time.After(lifetime(rng)):
		case <-failed:
			t.Errorf("failed in round %d", round)
		}
		if t.Failed() {
			break
		}
		b = b.replace(t, r)
	}
	close(stop)
	r.Exit(0)
	if !t.Failed() {
		select {
		case <-finished:
		case <-failed:
		case <-time.After(rig.Timeout):
			t.Error("the daemon does not get to the exit record")
		}
	}
	b.kill(t)
	// Whoever still waits sees the end of its pipe, or of its connection.
	r.Drop()
	wg.Wait()
	if !d.streams[wire.StreamStdout].tail || !d.streams[wire.StreamStderr].tail {
		t.Error("the exit record came before the last lines")
	}
	if consumed < d.accepted {
		t.Errorf("%d inputs were accepted and %d arrived", d.accepted, consumed)
	}
	t.Logf("%d kills: %d and %d lines, %d inputs, %d of them sent again", rounds, d.streams[wire.StreamStdout].count, d.streams[wire.StreamStderr].count, d.accepted, d.again)
	if d.accepted == 0 || d.streams[wire.StreamStdout].count == 0 {
		t.Error("the test moved nothing")
	}
}
