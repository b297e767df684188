package session

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/index"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/journal"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/profile"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/replay"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/spool"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
)

const (
	brokerTimeout = 10 * time.Second

	// slack is what SpoolLimit must have above MaxRecord, in bytes, so that
	// what no ack can free (one unfinished record of each stream, and the
	// pending requests) never fills the spool.
	slack = 16 << 20
	// maxStderrRecord cuts standard error into smaller pieces than MaxRecord
	// for the same reason.
	maxStderrRecord = 1 << 20
	maxLength       = 1 << 30
)

// Broker is what the session asks of the broker.
type Broker interface {
	// Up reports whether the broker was there when last heard of.
	Up() bool
	// Tell sends a message that has no answer. Error: CodeBrokerUnreachable.
	Tell(m wire.Message) error
	// Ask sends a request and waits for its answer. Errors:
	// CodeBrokerUnreachable, CodeTimeout, the broker's own.
	Ask(timeout time.Duration, make func(id uint64) wire.Message) (wire.Message, error)
}

// Config is what a session is made of.
type Config struct {
	Session    wire.SessionID
	Epoch      wire.Epoch
	Framing    wire.Framing
	MaxRecord  uint64
	MaxInput   uint64
	SpoolLimit uint64
	// Overflow is what happens at SpoolLimit; empty means backpressure.
	Overflow wire.Overflow
	// LeaseMillis is the lease of a writer that names none; 0 is for ever.
	LeaseMillis uint64
	// Set holds the descriptors; the session owns all but the listener.
	Set    *custody.Set
	Broker Broker
	Log    hclog.Logger
}

// Session is a recovered session. Its methods may be called concurrently.
type Session struct {
	cfg      Config
	log      hclog.Logger
	profile  profile.Profile
	pageSize int64

	index          *index.Index
	stdout, stderr *spool.Stream
	source         replay.Source
	floorSequence  atomic.Uint64
	floorBytes     atomic.Int64 // bytes of both streams below the floor
	pinnedBytes    atomic.Int64 // those of them that pending requests keep

	clientsMu sync.Mutex
	clients   map[*Client]struct{}

	recorded  bool          // the exit record was there when the session was opened
	stop      chan struct{} // closed by Close
	ended     chan struct{} // closed when the exit record is visible
	freeWake  chan struct{}
	leaseWake chan struct{}
	seatWake  chan struct{}
	owned     sync.WaitGroup // goroutines

	input inputPump

	// signals is held for reading while a client's signal is on its way, and
	// for writing while a writer takes its seat. It is locked before mu.
	signals sync.RWMutex

	mu         sync.Mutex // guards everything below
	control    *journal.Log
	data       *journal.Data
	inputs     map[string]accepted
	generation uint64
	seat       *Client
	proof      string        // what the writer shows with each request
	seated     bool          // this bridge has had a writer
	vacated    time.Duration // when the last one went
	released   bool          // it had acknowledged the exit record and gave the seat back
	requests   requests
	floor      journal.Floor
	freed      index.Ends // up to where the spools were punched
	freedIndex uint64
	closed     bool // closeInput is logged
	gone       bool // the agent has exited
	exit       *wire.Exit
	exitData   []byte
	terminate  chan struct{} // closed when a newer order replaces the timers
}

// accepted is what is remembered of an input.
type accepted struct {
	hash   [32]byte
	length uint64
}

// Open recovers the session from its files and starts nothing yet. It takes
// ownership of the descriptors, also when it fails. Errors: CodeInvalidConfig,
// and CodeInternal when the files are damaged.
func Open(cfg Config) (*Session, error) {
	s := &Session{
		cfg: cfg, log: cfg.Log, pageSize: int64(os.Getpagesize()),
		clients: make(map[*Client]struct{}),
		stop:    make(chan struct{}), ended: make(chan struct{}), freeWake: make(chan struct{}, 1), leaseWake: make(chan struct{}, 1), seatWake: make(chan struct{}, 1),
		inputs: make(map[string]accepted), requests: newRequests(),
	}
	err := cfg.check()
	if err == nil {
		s.profile, err = profile.New(cfg.Framing)
	}
	if err == nil {
		err = s.recover()
	}
	if err != nil {
		cfg.Set.Close()
		return nil, err
	}
	return s, nil
}

func (c *Config) check() error {
	switch {
	case !c.Session.Valid() || !c.Epoch.Valid():
		return badConfig("the session's id or epoch is malformed")
	case c.MaxRecord == 0 || c.MaxRecord > maxLength:
		return badConfig("maxRecord is %d bytes; it goes from 1 to %d", c.MaxRecord, maxLength)
	case c.MaxInput == 0 || c.MaxInput > maxLength:
		return badConfig("maxInput is %d bytes; it goes from 1 to %d", c.MaxInput, maxLength)
	case c.SpoolLimit < c.MaxRecord+slack:
		return badConfig("spoolLimit is %d bytes; it must be maxRecord and %d bytes more", c.SpoolLimit, slack)
	}
	return c.checkLease()
}

func badConfig(format string, args ...any) *wire.Error {
	return &wire.Error{
		Code:    wire.CodeInvalidConfig,
		Message: fmt.Sprintf("the session can't be opened: "+format, args...),
		Advice:  "correct the session's profile, or the place of its spool",
	}
}

// Start lets bytes flow.
func (s *Session) Start() {
	if s.recorded {
		close(s.ended)
	} else {
		s.own(s.stdout.Run)
		s.own(s.stderr.Run)
		s.own(s.watchExit)
	}
	s.own(s.runInput)
	s.own(s.runFree)
	s.own(s.runLease)
	s.own(s.runAlive)
	s.own(s.runSeat)
	s.wakeFree()
}

// wake wakes the goroutine that waits on a channel of length one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (s *Session) own(run func()) {
	s.owned.Add(1)
	go func() {
		defer s.owned.Done()
		run()
	}()
}

// Close ends everything that Start began and closes the descriptors. What was
// accepted and taken stays in the files, where the next bridge finds it.
func (s *Session) Close() {
	close(s.stop)
	if !s.recorded {
		s.stdout.Close()
		s.stderr.Close()
	}
	s.cfg.Set.Exit.Close()
	if s.cfg.Set.Stdin != nil {
		s.cfg.Set.Stdin.Close()
	}
	s.owned.Wait()
	s.cfg.Set.Close()
}

// Ended is closed once the exit record is visible.
func (s *Session) Ended() <-chan struct{} { return s.ended }

// NextSequence returns the sequence that the next record will get.
func (s *Session) NextSequence() uint64 { return s.index.Next() }

// NewReader makes a reader of records that starts with the given sequence.
func (s *Session) NewReader(next uint64) *replay.Reader { return replay.NewReader(&s.source, next) }

func (s *Session) wakeClients() {
	s.clientsMu.Lock()
	defer s.clientsMu.Unlock()
	for c := range s.clients {
		c.peer.Wake()
	}
}
