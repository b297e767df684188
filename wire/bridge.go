package wire

// Mode is what an attachment may do.
type Mode string

// Modes. At most one writer is attached at a time; observers only read.
const (
	ModeWriter   Mode = "writer"
	ModeObserver Mode = "observer"
)

// From says where an attachment starts to read.
type From string

// Places to start from.
const (
	// FromOldest starts at the oldest record still held.
	FromOldest From = "oldest"
	// FromCursor starts right after Attach.Cursor.
	FromCursor From = "cursor"
	// FromLive starts with the next record.
	FromLive From = "live"
)

// Attach joins a session. It is sent once on a connection. Attached answers,
// then pending requests, then records flow.
type Attach struct {
	Type string `cbor:"type"`
	ID   uint64 `cbor:"id"`
	Mode Mode   `cbor:"mode"`
	From From   `cbor:"from"`
	// Cursor is present exactly when From is FromCursor. Errors:
	// CodeInvalidCursor for another epoch or a sequence never given out,
	// CodeReplayGap when records after it are gone.
	Cursor *Cursor `cbor:"cursor,omitempty"`
	// Takeover lets a writer replace the living one, which is told that it is
	// fenced. Without it the answer is CodeWriterAlreadyAttached.
	Takeover bool `cbor:"takeover,omitempty"`
	// Client names the daemon's run in logs and in inspect, at most 128 bytes.
	Client string `cbor:"client,omitempty"`
	// LeaseMillis is how long the writer may be silent before it loses its
	// seat, MinLeaseMillis to MaxLeaseMillis. Each whole message that it sends
	// renews the lease, Ping among them. 0 leaves it to Configure.LeaseMillis.
	LeaseMillis uint64 `cbor:"leaseMillis,omitempty"`
}

// Attached answers Attach.
type Attached struct {
	Type    string    `cbor:"type"`
	ID      uint64    `cbor:"id"`
	Session SessionID `cbor:"session"`
	Epoch   Epoch     `cbor:"epoch"`
	// Lease proves the writer's right; empty for an observer.
	Lease string `cbor:"lease,omitempty"`
	// LeaseMillis is how long the writer may be silent; 0 means as long as its
	// connection lives.
	LeaseMillis uint64 `cbor:"leaseMillis,omitempty"`
	// Generation counts the writers of the session, from 1.
	Generation uint64 `cbor:"generation"`
	// NextSequence is the sequence that the next new record will get.
	NextSequence uint64 `cbor:"nextSequence"`
	// LostBefore is the oldest sequence still held: older ones are freed. It
	// is above Acked+1 when records were dropped (OverflowDropOldest).
	LostBefore uint64 `cbor:"lostBefore"`
	// Acked is the sequence up to which a writer has acknowledged.
	Acked uint64 `cbor:"acked"`
	// Pending lists the requests of the agent that wait for an answer. Their
	// records are sent right after this message, as pending records.
	Pending     []PendingRequest `cbor:"pending,omitempty"`
	InputClosed bool             `cbor:"inputClosed,omitempty"`
	Exit        *Exit            `cbor:"exit,omitempty"`
}

// PendingRequest is a request of the agent that waits for an answer.
type PendingRequest struct {
	// RequestID is the id that the agent gave it.
	RequestID string `cbor:"requestId"`
	// Sequence is that of the record that carried it.
	Sequence uint64 `cbor:"sequence"`
}

// Ack says that everything up to Cursor is durable at the writer. It may free
// the records; it never goes backwards. Acked answers. Errors:
// CodeInvalidAck beyond what was sent on this connection, CodeInvalidCursor
// for another epoch, CodeStaleWriter.
type Ack struct {
	Type   string `cbor:"type"`
	ID     uint64 `cbor:"id"`
	Lease  string `cbor:"lease"`
	Cursor Cursor `cbor:"cursor"`
}

// Acked answers Ack with the highest acknowledged sequence.
type Acked struct {
	Type     string `cbor:"type"`
	ID       uint64 `cbor:"id"`
	Sequence uint64 `cbor:"sequence"`
}

// Input is one input to the agent, or a fragment of one. Fragments of one
// input come in order on one connection, with nothing of another input in
// between; only the last is answered, by Accepted. An input with fragments is
// dropped when the connection ends before its last one.
type Input struct {
	Type  string `cbor:"type"`
	ID    uint64 `cbor:"id"`
	Lease string `cbor:"lease"`
	// InputID is chosen by the client, 1 to 128 bytes, and remembered for the
	// session's life. The same id with the same bytes is accepted again
	// without effect (R43); with others it is CodeInputIDConflict.
	InputID string `cbor:"inputId"`
	// Offset is where Data stands in the whole input, in bytes.
	Offset uint64 `cbor:"offset"`
	// More says that further fragments follow.
	More bool   `cbor:"more,omitempty"`
	Data []byte `cbor:"data"`
}

// Accepted answers an input: it is in durable custody, in this order, and will
// be delivered once. It does not say that the agent has read it.
type Accepted struct {
	Type    string `cbor:"type"`
	ID      uint64 `cbor:"id"`
	InputID string `cbor:"inputId"`
	// Duplicate says that the input had been accepted before.
	Duplicate bool `cbor:"duplicate,omitempty"`
}

// CloseInput ends the agent's standard input after everything accepted.
// Done answers once the pipe is closed everywhere. It is idempotent.
type CloseInput struct {
	Type  string `cbor:"type"`
	ID    uint64 `cbor:"id"`
	Lease string `cbor:"lease"`
}

// Signal sends a signal to the agent's first process. Done answers.
type Signal struct {
	Type  string `cbor:"type"`
	ID    uint64 `cbor:"id"`
	Lease string `cbor:"lease"`
	// Signal is INT, TERM, HUP, KILL, USR1 or USR2.
	Signal string `cbor:"signal"`
}

// Terminate ends the agent: standard input is closed, then TERM after
// GraceMillis, then KILL after GraceMillis again. Done answers when the order
// was taken; the exit record tells the end.
type Terminate struct {
	Type        string `cbor:"type"`
	ID          uint64 `cbor:"id"`
	Lease       string `cbor:"lease"`
	GraceMillis uint64 `cbor:"graceMillis"`
}

// Release gives the writer's seat back and leaves the session running. Done
// answers; the connection stays as an observer's.
type Release struct {
	Type  string `cbor:"type"`
	ID    uint64 `cbor:"id"`
	Lease string `cbor:"lease"`
}

// Inspect asks the bridge for its state. Status answers. No lease is needed.
type Inspect struct {
	Type string `cbor:"type"`
	ID   uint64 `cbor:"id"`
}

// Status is the bridge's view of its session.
type Status struct {
	Type       string    `cbor:"type"`
	ID         uint64    `cbor:"id"`
	Session    SessionID `cbor:"session"`
	Epoch      Epoch     `cbor:"epoch"`
	BridgePID  uint64    `cbor:"bridgePid"`
	Generation uint64    `cbor:"generation"`
	Writer     string    `cbor:"writer,omitempty"`
	HasWriter  bool      `cbor:"hasWriter,omitempty"`
	// LeaseMillis is the writer's lease, LeaseRemainingMillis what is left of
	// it; both are 0 without one.
	LeaseMillis          uint64 `cbor:"leaseMillis,omitempty"`
	LeaseRemainingMillis uint64 `cbor:"leaseRemainingMillis,omitempty"`
	Observers            uint64 `cbor:"observers"`
	NextSequence         uint64 `cbor:"nextSequence"`
	LostBefore           uint64 `cbor:"lostBefore"`
	Acked                uint64 `cbor:"acked"`
	// Output and input positions, in bytes since the session began.
	StdoutBytes    uint64 `cbor:"stdoutBytes"`
	StderrBytes    uint64 `cbor:"stderrBytes"`
	InputAccepted  uint64 `cbor:"inputAccepted"`
	InputDelivered uint64 `cbor:"inputDelivered"`
	// SpoolBytes is what the output holds now; SpoolLimit what it may hold.
	SpoolBytes uint64 `cbor:"spoolBytes"`
	SpoolLimit uint64 `cbor:"spoolLimit"`
	// Framing says what the agent's records mean: FramingPi for a session that
	// runs Pi.
	Framing Framing `cbor:"framing,omitempty"`
	// Overflow is what happens at SpoolLimit.
	Overflow Overflow `cbor:"overflow,omitempty"`
	// DroppedRecords and DroppedBytes went before a writer acknowledged them.
	DroppedRecords uint64 `cbor:"droppedRecords,omitempty"`
	DroppedBytes   uint64 `cbor:"droppedBytes,omitempty"`
	// OutputStalled says that the agent's output is not being read, and
	// StallReason why.
	OutputStalled bool             `cbor:"outputStalled,omitempty"`
	StallReason   StallReason      `cbor:"stallReason,omitempty"`
	Pending       []PendingRequest `cbor:"pending,omitempty"`
	InputClosed   bool             `cbor:"inputClosed,omitempty"`
	Exit          *Exit            `cbor:"exit,omitempty"`
}

// StallReason says why output is not read.
type StallReason string

// Reasons of a stall. The first ends with an ack, the second with an answer,
// the others by themselves once the file system takes writes again.
const (
	StallSpoolLimit StallReason = "spool_limit"
	StallRequests   StallReason = "requests_pending"
	// StallStorage: the file system is full, or the quota is used up.
	StallStorage StallReason = "storage_full"
	// StallFailure: the file system fails in another way; the bridge's log
	// has the error.
	StallFailure StallReason = "storage_failed"
)

// Ping asks for a Pong, and shows that the client lives.
type Ping struct {
	Type string `cbor:"type"`
	ID   uint64 `cbor:"id"`
}

// Pong answers Ping.
type Pong struct {
	Type string `cbor:"type"`
	ID   uint64 `cbor:"id"`
}

// Fenced tells a writer that it lost its seat: a newer one took its place, or
// its lease expired. Nothing that it sends from then on has an effect; the
// answers are CodeStaleWriter.
type Fenced struct {
	Type string `cbor:"type"`
	// Generation is that of the new writer, or the fenced writer's own when
	// its lease expired.
	Generation uint64 `cbor:"generation"`
}

// Kind implements Message.
func (Attach) Kind() string { return "attach" }

// Kind implements Message.
func (Attached) Kind() string { return "attached" }

// Kind implements Message.
func (Ack) Kind() string { return "ack" }

// Kind implements Message.
func (Acked) Kind() string { return "acked" }

// Kind implements Message.
func (Input) Kind() string { return "input" }

// Kind implements Message.
func (Accepted) Kind() string { return "accepted" }

// Kind implements Message.
func (CloseInput) Kind() string { return "closeInput" }

// Kind implements Message.
func (Signal) Kind() string { return "signal" }

// Kind implements Message.
func (Terminate) Kind() string { return "terminate" }

// Kind implements Message.
func (Release) Kind() string { return "release" }

// Kind implements Message.
func (Inspect) Kind() string { return "inspect" }

// Kind implements Message.
func (Status) Kind() string { return "status" }

// Kind implements Message.
func (Ping) Kind() string { return "ping" }

// Kind implements Message.
func (Pong) Kind() string { return "pong" }

// Kind implements Message.
func (Fenced) Kind() string { return "fenced" }
