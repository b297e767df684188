package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/runsc"
	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// Names under which the test's program is something else.
const (
	fakeSandboxName = "fake-sandbox"
	bridgeName      = "paseo-sandbox-bridge"
)

// fakeRuntime is a Runtime whose containers are processes of the test's
// program, known by a file each, so that another Manager finds them.
type fakeRuntime struct {
	root string
	// failCreate, failStart and failDelete are returned instead.
	failCreate, failStart, failDelete error
	// stuck makes Delete wait for its context.
	stuck bool
	// created runs in the middle of Create.
	created func()
	// deleting runs at the beginning of Delete.
	deleting func()
	// hold, if set, is waited for in Create.
	hold chan struct{}
}

func (f *fakeRuntime) Create(ctx context.Context, id wire.SessionID, bundleDir string, _ uint32, s runsc.Streams) (int, *process.Process, error) {
	if f.failCreate != nil {
		return 0, nil, f.failCreate
	}
	if f.hold != nil {
		select {
		case <-f.hold:
		case <-ctx.Done():
			return 0, nil, ctx.Err()
		}
	}
	if err := os.WriteFile(filepath.Join(f.root, string(id)), nil, 0o600); err != nil {
		return 0, nil, err
	}
	exe, err := unix.Open("/proc/self/exe", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, nil, err
	}
	defer unix.Close(exe)
	var ready [2]int
	if err := unix.Pipe2(ready[:], unix.O_CLOEXEC); err != nil {
		return 0, nil, err
	}
	defer unix.Close(ready[0])
	p, err := process.Start(process.Command{Executable: exe, Args: []string{fakeSandboxName, string(id), f.root}, Files: []int{s.Stdin, s.Stdout, s.Stderr, s.Exit, ready[1]}})
	unix.Close(ready[1])
	if err != nil {
		return 0, nil, err
	}
	unix.Read(ready[0], make([]byte, 1)) // it handles signals from now on
	if f.created != nil {
		f.created()
	}
	return p.ID().PID, p, nil
}

func (f *fakeRuntime) Start(context.Context, wire.SessionID) error { return f.failStart }

func (f *fakeRuntime) Signal(_ context.Context, id wire.SessionID, name string) error {
	pids := processesOf(id)
	if len(pids) == 0 {
		return runsc.ErrNotFound
	}
	return unix.Kill(pids[0], unix.SignalNum("SIG"+name))
}

func (f *fakeRuntime) Delete(ctx context.Context, id wire.SessionID) error {
	if f.deleting != nil {
		f.deleting()
	}
	if f.failDelete != nil {
		return f.failDelete
	}
	if f.stuck {
		<-ctx.Done()
		return ctx.Err()
	}
	for _, pid := range processesOf(id) {
		p, err := process.Open(pid)
		if err != nil {
			continue
		}
		err = p.Kill(ctx)
		p.Close()
		if err != nil {
			return err
		}
	}
	os.Remove(filepath.Join(f.root, string(id)))
	return nil
}

func (f *fakeRuntime) List(context.Context) (map[string]wire.SessionID, error) {
	entries, err := os.ReadDir(f.root)
	found := make(map[string]wire.SessionID)
	for _, e := range entries {
		found[f.root+"/"+e.Name()] = wire.SessionID(e.Name())
	}
	return found, err
}

func (f *fakeRuntime) Tidy() error { return nil }

// processesOf finds the sandbox of a session.
func processesOf(id wire.SessionID) []int {
	return findProcesses(func(words []string, _ int) bool {
		return words[0] == fakeSandboxName && slices.Contains(words, string(id))
	})
}

func findProcesses(match func(words []string, pid int) bool) []int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var found []int
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		b, err := os.ReadFile(dir + "/cmdline")
		if err == nil && len(b) > 0 && match(strings.Split(string(b), "\x00"), pid) {
			found = append(found, pid)
		}
	}
	return found
}

// fakeSandbox echoes its input until the end, and reports its exit as a reaper
// does. It is the sandbox and the reaper in one.
func fakeSandbox() int {
	term := make(chan os.Signal, 1)
	signal.Notify(term, unix.SIGTERM)
	unix.Close(4)
	status := make(chan int, 2)
	go func() {
		<-term
		status <- 128 + int(unix.SIGTERM)
	}()
	go func() {
		// Not io.Copy: it would splice, which is not what programs do.
		buf := make([]byte, 4096)
		for {
			n, err := os.Stdin.Read(buf)
			os.Stdout.Write(buf[:n])
			if err != nil {
				status <- 3
				return
			}
		}
	}()
	exit := os.NewFile(3, "exit")
	fmt.Fprintf(exit, "{\"id\":%q,\"exitStatus\":%d}\n", os.Args[1], <-status)
	return 0
}

// What a fake bridge does. It has no environment and no arguments: the
// configured limit of inputs tells it.
const (
	behaveWell = 1000 + iota
	behaveGarbage
	behaveDying
	behaveCrashing
	behaveFailing
	behaveDeaf
	behaveEarlyExit
	behaveSmuggling
	behaveClosingInput
	behaveForeign
	behaveSignalling
	behaveFlooding
	behaveOversized
	behaveReturning
	behaveLying
	behaveSharing
	behaveSlow
	behaveSeating
)

type fakeBridge struct {
	conn *net.UnixConn
	c    wire.Configure
	fds  map[wire.DescriptorName]int
	id   uint64
	// seat is what it says of its writer, and heard how many of a test's orders
	// it has taken (tellSeats).
	seat  *wire.Seat
	heard int64
}

// runFakeBridge serves no clients. What it sees, it says on standard error.
func runFakeBridge() int {
	signal.Ignore(unix.SIGPIPE)
	unix.CloseOnExec(3)
	conn, err := fdpass.Adopt(3)
	if err != nil {
		return 1
	}
	payload, fds, err := fdpass.Receive(conn, wire.MaxCustodyMessage)
	if err != nil {
		return 1 // the broker died before
	}
	m, err := wire.Decode(wire.ToBridge, payload)
	if err != nil {
		return 1
	}
	b := &fakeBridge{conn: conn, c: m.(wire.Configure), fds: make(map[wire.DescriptorName]int)}
	for i, name := range b.c.Descriptors {
		b.fds[name] = fds[i]
	}
	say("uid %d has %v", uidOfSelf(), b.c.Descriptors)
	say("serves %v", b.c.PeerUIDs)
	return b.behave()
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (b *fakeBridge) behave() int {
	b.heard, _ = unix.Seek(b.fds[wire.FDControlLog], 0, io.SeekEnd)
	switch b.c.MaxInput {
	case behaveCrashing:
		return 7
	case behaveFailing:
		b.tell(wire.ErrorMessage{Code: wire.CodeInvalidConfig, Message: "the spool is strange"})
		b.forever()
	case behaveSlow:
		// The one before has been here.
		if n, _ := unix.Pread(b.fds[wire.FDControlLog], make([]byte, 1), 0); n == 1 {
			b.forever()
		}
		unix.Pwrite(b.fds[wire.FDControlLog], []byte("x"), 0)
	}
	b.tell(wire.Ready{NextSequence: 1})
	switch b.c.MaxInput {
	case behaveSharing:
		b.share()
	case behaveSeating:
		b.tellSeats()
	case behaveGarbage:
		fdpass.Send(b.conn, []byte("garbage"))
		b.forever()
	case behaveOversized:
		fdpass.Send(b.conn, make([]byte, wire.MaxCustodyMessage+1))
		b.forever()
	case behaveDying:
		time.Sleep(100 * time.Millisecond) // the broker has seen that it is ready
		// Not by an exit, which takes the race detector a second.
		unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGKILL)
	case behaveDeaf:
		b.conn.Close()
		b.forever()
	case behaveEarlyExit:
		say("early: %v", b.ask(func(id uint64) wire.Message {
			return wire.BridgeExit{ID: id, Status: []byte("{}"), Exit: wire.Exit{Code: 99, Reason: wire.ReasonExited}}
		}))
	case behaveSmuggling:
		for range 50 {
			b.id++
			p, _ := wire.Encode(wire.BridgeInputClosed{ID: b.id})
			if err := fdpass.Send(b.conn, p, b.fds[wire.FDIndex], b.fds[wire.FDControlLog]); err != nil {
				say("refused: %v", err)
				break
			}
			fdpass.Receive(b.conn, wire.MaxCustodyMessage)
		}
		say("smuggled")
	case behaveClosingInput:
		unix.Close(b.fds[wire.FDStdin])
		say("closed: %v", b.ask(func(id uint64) wire.Message { return wire.BridgeInputClosed{ID: id} }))
	case behaveForeign:
		p, _ := wire.Encode(wire.SignalSession{ID: 1, Session: b.c.Session, Signal: "KILL"})
		fdpass.Send(b.conn, p)
		b.forever()
	case behaveFlooding:
		p, _ := wire.Encode((&wire.Error{Code: wire.CodeInternal, Message: "flood", Advice: "none"}).ToMessage(0))
		for fdpass.Send(b.conn, p) == nil {
		}
		b.forever()
	case behaveReturning, behaveLying:
		b.forever()
	case behaveSignalling:
		// The session runs a moment after its bridge is ready.
		answer := string(wire.CodeSessionNotRunning)
		for deadline := time.Now().Add(10 * time.Second); answer == string(wire.CodeSessionNotRunning) && time.Now().Before(deadline); {
			answer = b.ask(func(id uint64) wire.Message { return wire.BridgeSignal{ID: id, Signal: "TERM"} })
		}
		say("signal: %v", answer)
	}
	b.awaitExit()
	b.forever()
	return 0
}

// awaitExit reads the exit pipe to its end and reports it.
func (b *fakeBridge) awaitExit() {
	pipe := os.NewFile(uintptr(b.fds[wire.FDExit]), "exit")
	status, _ := io.ReadAll(pipe)
	exit := wire.Exit{Code: unobserved, Reason: wire.ReasonUnknown}
	var s struct {
		ExitStatus *int64 `json:"exitStatus"`
	}
	if json.Unmarshal(status, &s) == nil && s.ExitStatus != nil {
		exit = wire.Exit{Code: *s.ExitStatus, Reason: wire.ReasonExited}
		if exit.Code > 128 {
			exit.Signal = strings.TrimPrefix(unix.SignalName(unix.Signal(exit.Code-128)), "SIG")
		}
	}
	say("reason: %v", b.ask(func(id uint64) wire.Message { return wire.BridgeExit{ID: id, Status: status, Exit: exit} }))
}

func (b *fakeBridge) tell(m wire.Message) {
	p, err := wire.Encode(m)
	if err != nil {
		say("encode: %v", err)
	}
	fdpass.Send(b.conn, p)
}

func (b *fakeBridge) ask(make func(uint64) wire.Message) string {
	b.id++
	b.tell(make(b.id))
	p, _, err := fdpass.Receive(b.conn, wire.MaxCustodyMessage)
	if err != nil {
		return err.Error()
	}
	m, err := wire.Decode(wire.ToBridge, p)
	switch m := m.(type) {
	case wire.Done:
		return "done"
	case wire.BridgeExitReason:
		return string(m.Reason)
	case wire.ErrorMessage:
		return string(m.Code)
	}
	return fmt.Sprint(err)
}

// forever goes on without the broker, as bridges do, until it is killed. One
// that returns gives later brokers its descriptors; one that lies gives them
// its spool for writing in the place of the index.
func (b *fakeBridge) forever() {
	for b.c.MaxInput == behaveReturning || b.c.MaxInput == behaveLying {
		if err := b.giveBack(); err != nil {
			say("give back: %v", err)
		}
	}
	for {
		time.Sleep(time.Hour)
	}
}

func (b *fakeBridge) giveBack() error {
	fd, _, err := unix.Accept4(b.fds[wire.FDCustody], unix.SOCK_CLOEXEC)
	if errors.Is(err, unix.EAGAIN) {
		time.Sleep(5 * time.Millisecond)
		return nil
	}
	if err != nil {
		return err
	}
	conn, err := fdpass.Adopt(fd)
	if err != nil {
		return err
	}
	p, _, err := fdpass.Receive(conn, wire.MaxCustodyMessage)
	if err != nil {
		return err
	}
	if m, err := wire.Decode(wire.ToBridge, p); err != nil || m.Kind() != "resume" {
		return fmt.Errorf("got %v, %v", m, err)
	}
	fds := make([]int, len(b.c.Descriptors))
	for i, name := range b.c.Descriptors {
		if fds[i] = b.fds[name]; name == wire.FDIndex && b.c.MaxInput == behaveLying {
			fds[i] = b.fds[wire.FDStdoutRead]
		}
	}
	if p, err = wire.Encode(wire.Resumed{Descriptors: b.c.Descriptors, Seat: b.seat}); err != nil {
		return err
	}
	b.conn = conn
	return fdpass.Send(conn, p, fds...)
}

// uidOfSelf asks in the one way that the launcher's filter allows.
func uidOfSelf() int {
	uid, _, _ := unix.Getresuid()
	return uid
}
