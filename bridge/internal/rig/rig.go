package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/app"
	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// Timeout bounds every wait of a test.
const Timeout = 60 * time.Second

// Options change what a session is made of; zero values mean the defaults.
type Options struct {
	Framing    wire.Framing
	MaxRecord  uint64
	MaxInput   uint64
	SpoolLimit uint64
	PeerUIDs   []uint64
	// Overflow and LeaseMillis are those of wire.Configure.
	Overflow    wire.Overflow
	LeaseMillis uint64
	// Dir holds the session's files and socket; empty means a temporary folder.
	Dir string
	// LogTo gets the bridge's log; nil drops it.
	LogTo io.Writer
}

// Rig is a session and its broker.
type Rig struct {
	T       testing.TB
	Options Options
	Dir     string
	Session wire.SessionID
	Epoch   wire.Epoch

	// The agent's ends; blocking, as for a program. The test closes them.
	AgentStdin, AgentStdout, AgentStderr, AgentExit *os.File

	mu     sync.Mutex
	spares map[wire.DescriptorName]int

	// Reason is what the broker says of the exit; "" means no answer. Lives
	// makes it say that the agent has not ended.
	Reason wire.Reason
	Lives  atomic.Bool
	// Signals gets the signals that the bridge asks for. They are done when
	// SignalsDone, unless that is nil, is closed.
	Signals     chan string
	SignalsDone chan struct{}
	// Exits gets what the bridge says of the exit.
	Exits chan wire.BridgeExit
	// Seats gets what the bridge says of its writer's seat, as far as a test
	// takes it.
	Seats chan wire.Seat
}

var order = []wire.DescriptorName{
	wire.FDStdin, wire.FDStdout, wire.FDStderr, wire.FDExit, wire.FDListener,
	wire.FDStdoutSpool, wire.FDStderrSpool, wire.FDStdoutRead, wire.FDStderrRead,
	wire.FDIndex, wire.FDInputSplice, wire.FDInputData, wire.FDControlLog, wire.FDExitSpool, wire.FDExitRead,
}

// New makes the session's descriptors. They are closed when the test ends.
func New(t testing.TB, o Options) *Rig {
	t.Helper()
	if o.Framing == "" {
		o.Framing = wire.FramingLines
	}
	if o.MaxRecord == 0 {
		o.MaxRecord = 80 << 20
	}
	if o.MaxInput == 0 {
		o.MaxInput = 80 << 20
	}
	if o.SpoolLimit == 0 {
		o.SpoolLimit = 256 << 20
	}
	if o.PeerUIDs == nil {
		o.PeerUIDs = []uint64{uint64(os.Getuid())}
	}
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	r := &Rig{
		T: t, Options: o, Dir: o.Dir, Session: "0198c0de00007000800000000000beef", Epoch: "0011223344556677",
		spares: make(map[wire.DescriptorName]int), Reason: wire.ReasonExited,
		Signals: make(chan string, 64), Exits: make(chan wire.BridgeExit, 64), Seats: make(chan wire.Seat, 64),
	}
	r.AgentStdin = r.pipe(wire.FDStdin, false)
	r.AgentStdout = r.pipe(wire.FDStdout, true)
	r.AgentStderr = r.pipe(wire.FDStderr, true)
	r.AgentExit = r.pipe(wire.FDExit, true)
	r.file("stdout", wire.FDStdoutSpool, wire.FDStdoutRead)
	r.file("stderr", wire.FDStderrSpool, wire.FDStderrRead)
	r.file("exit.data", wire.FDExitSpool, wire.FDExitRead)
	r.file("input.data", wire.FDInputSplice, wire.FDInputData)
	r.file("index", wire.FDIndex)
	r.file("control.log", wire.FDControlLog)
	r.listen()
	t.Cleanup(r.close)
	return r
}

// pipe makes a pipe: the bridge's end is non-blocking, the agent's is not.
// Each end is a description of its own.
func (r *Rig) pipe(name wire.DescriptorName, bridgeReads bool) *os.File {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		r.T.Fatal(err)
	}
	bridge, agent := p[1], p[0]
	if bridgeReads {
		bridge, agent = p[0], p[1]
	}
	if err := unix.SetNonblock(bridge, true); err != nil {
		r.T.Fatal(err)
	}
	r.spares[name] = bridge
	return os.NewFile(uintptr(agent), "agent-"+string(name))
}

func (r *Rig) file(path string, names ...wire.DescriptorName) {
	for _, name := range names {
		flags := unix.O_RDWR
		if name == wire.FDInputSplice || name == wire.FDExitRead {
			flags = unix.O_RDONLY
		}
		fd, err := unix.Open(filepath.Join(r.Dir, path), flags|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err != nil {
			r.T.Fatal(err)
		}
		r.spares[name] = fd
	}
}

func (r *Rig) listen() {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		r.T.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: r.SocketPath()}); err != nil {
		r.T.Fatal(err)
	}
	if err := unix.Listen(fd, 128); err != nil {
		r.T.Fatal(err)
	}
	r.spares[wire.FDListener] = fd
}

// SocketPath is the path of the session's socket.
func (r *Rig) SocketPath() string { return filepath.Join(r.Dir, "s.sock") }

// Drop closes all spares, as when the session is deleted.
func (r *Rig) Drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, fd := range r.spares {
		unix.Close(fd)
	}
	clear(r.spares)
	_ = os.Remove(r.SocketPath())
}

func (r *Rig) close() {
	r.Drop()
	for _, f := range []*os.File{r.AgentStdin, r.AgentStdout, r.AgentStderr, r.AgentExit} {
		f.Close()
	}
}

// Exit does what a reaper does: it writes the status and ends.
func (r *Rig) Exit(status int) {
	r.T.Helper()
	if _, err := fmt.Fprintf(r.AgentExit, "{\"id\":%q,\"exitStatus\":%d}\n", r.Session, status); err != nil {
		r.T.Fatal(err)
	}
	r.AgentExit.Close()
}

// Broker is the broker's side of one bridge.
type Broker struct {
	rig  *Rig
	conn *net.UnixConn
	done chan struct{}
	// Ready gets the bridge's Ready, or is closed.
	Ready chan wire.Ready
	// Failure gets the bridge's error before it is ready.
	Failure chan wire.ErrorMessage
}

// Serve sends the configuration with duplicates of the spares over the
// broker's end of a socketpair, and answers the bridge.
func (r *Rig) Serve(conn *net.UnixConn) *Broker {
	r.T.Helper()
	b := &Broker{rig: r, conn: conn, done: make(chan struct{}), Ready: make(chan wire.Ready, 1), Failure: make(chan wire.ErrorMessage, 1)}
	c := r.Configure()
	payload, err := wire.Encode(c)
	if err != nil {
		r.T.Fatal(err)
	}
	r.mu.Lock()
	fds := make([]int, len(c.Descriptors))
	for i, name := range c.Descriptors {
		fds[i] = r.spares[name]
	}
	err = fdpass.Send(conn, payload, fds...)
	r.mu.Unlock()
	if err != nil {
		r.T.Fatal(err)
	}
	go b.run()
	return b
}

// Configure is the configuration for the next bridge.
func (r *Rig) Configure() wire.Configure {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := wire.Configure{
		Session: r.Session, Epoch: r.Epoch, Framing: r.Options.Framing, PeerUIDs: r.Options.PeerUIDs,
		MaxRecord: r.Options.MaxRecord, MaxInput: r.Options.MaxInput, SpoolLimit: r.Options.SpoolLimit,
		Overflow: r.Options.Overflow, LeaseMillis: r.Options.LeaseMillis,
	}
	for _, name := range order {
		if _, ok := r.spares[name]; ok {
			c.Descriptors = append(c.Descriptors, name)
		}
	}
	return c
}

func (b *Broker) run() {
	defer close(b.done)
	defer close(b.Ready)
	for {
		payload, fds, err := fdpass.Receive(b.conn, wire.MaxCustodyMessage)
		if err != nil {
			return
		}
		fdpass.CloseAll(fds)
		m, err := wire.Decode(wire.FromBridge, payload)
		if err != nil {
			b.rig.T.Errorf("from the bridge: %v", err)
			return
		}
		if answer := b.answer(m); answer != nil {
			payload, err := wire.Encode(answer)
			if err != nil {
				b.rig.T.Error(err)
				return
			}
			if fdpass.Send(b.conn, payload) != nil {
				return
			}
		}
	}
}

func (b *Broker) answer(m wire.Message) wire.Message {
	r := b.rig
	switch m := m.(type) {
	case wire.Ready:
		b.Ready <- m
	case wire.ErrorMessage:
		b.Failure <- m
	case wire.BridgeSignal:
		r.Signals <- m.Signal
		if r.SignalsDone != nil {
			<-r.SignalsDone
		}
		return wire.Done{ID: m.ID}
	case wire.BridgeInputClosed:
		r.DropStdin()
		return wire.Done{ID: m.ID}
	case wire.BridgeSeat:
		select {
		case r.Seats <- m.Seat:
		default:
		}
		return wire.Done{ID: m.ID}
	case wire.BridgeExit:
		if r.Lives.Load() {
			return (&wire.Error{Code: wire.CodeInvalidArgument, Message: "the sandbox has not ended", Advice: "report it when it has"}).ToMessage(m.ID)
		}
		r.Exits <- m
		if r.Reason != "" {
			return wire.BridgeExitReason{ID: m.ID, Reason: r.Reason}
		}
	}
	return nil
}

// DropStdin closes the spare of the agent's input.
func (r *Rig) DropStdin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if fd, ok := r.spares[wire.FDStdin]; ok {
		unix.Close(fd)
		delete(r.spares, wire.FDStdin)
	}
}

// WaitReady waits for the bridge to be ready.
func (b *Broker) WaitReady() wire.Ready {
	b.rig.T.Helper()
	select {
	case m, ok := <-b.Ready:
		if !ok {
			b.rig.T.Fatal("the bridge ended before it was ready")
		}
		return m
	case e := <-b.Failure:
		b.rig.T.Fatalf("the bridge can't open the session: %v", e.Err())
	case <-time.After(Timeout):
		b.rig.T.Fatal("the bridge is not ready in time")
	}
	panic("unreachable")
}

// Close ends the broker's side: to the bridge the broker is dead.
func (b *Broker) Close() {
	b.conn.Close()
	<-b.done
}

// Bridge is a bridge that runs inside the test's process.
type Bridge struct {
	*Broker
	rig    *Rig
	cancel context.CancelFunc
	err    chan error
	once   sync.Once
}

// Start runs a bridge in this process and waits until it is ready. It is
// stopped when the test ends, or by Stop.
func (r *Rig) Start() *Bridge {
	r.T.Helper()
	b := r.Launch()
	b.WaitReady()
	return b
}

// Launch is Start without the wait.
func (r *Rig) Launch() *Bridge {
	r.T.Helper()
	local, remote, err := fdpass.Pair()
	if err != nil {
		r.T.Fatal(err)
	}
	conn, err := fdpass.Adopt(remote)
	if err != nil {
		r.T.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b := &Bridge{rig: r, cancel: cancel, err: make(chan error, 1)}
	log := hclog.NewNullLogger()
	if r.Options.LogTo != nil {
		log = hclog.New(&hclog.LoggerOptions{Output: r.Options.LogTo, JSONFormat: true})
	}
	go func() { b.err <- app.Run(ctx, conn, log) }()
	b.Broker = r.Serve(local)
	r.T.Cleanup(func() {
		if err := b.Stop(); err != nil {
			r.T.Errorf("the bridge ended with: %v", err)
		}
	})
	return b
}

// Stop ends the bridge cleanly, once, and returns its error.
func (b *Bridge) Stop() (err error) {
	b.once.Do(func() {
		b.cancel()
		select {
		case err = <-b.err:
		case <-time.After(Timeout):
			err = errors.New("the bridge does not end")
		}
		b.Broker.Close()
	})
	return err
}
