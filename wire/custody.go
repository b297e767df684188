package wire

import "time"

// The messages of this file travel only between the broker and a bridge that
// it started, each as one packet of a SOCK_SEQPACKET socketpair, without a
// length prefix.

// DescriptorName names one descriptor of Configure.
type DescriptorName string

// Descriptors of a session. The pipe ends are the bridge's own; those of files
// are separate open file descriptions where two names point at one file,
// because a description that is spliced into or out of may be used for nothing
// else.
const (
	// FDStdin is the write end of the agent's standard input. It is absent
	// when input was closed before.
	FDStdin DescriptorName = "stdin"
	// FDStdout and FDStderr are the read ends of the agent's output.
	FDStdout DescriptorName = "stdout"
	FDStderr DescriptorName = "stderr"
	// FDExit is the read end of the pipe that gets the exit status.
	FDExit DescriptorName = "exit"
	// FDListener is the session's listening socket.
	FDListener DescriptorName = "listener"
	// FDStdoutSpool and FDStderrSpool take the output by splice(2); their file
	// offsets are the positions of the streams.
	FDStdoutSpool DescriptorName = "stdoutSpool"
	FDStderrSpool DescriptorName = "stderrSpool"
	// FDStdoutRead and FDStderrRead read and punch the same files.
	FDStdoutRead DescriptorName = "stdoutRead"
	FDStderrRead DescriptorName = "stderrRead"
	// FDIndex holds the index of records.
	FDIndex DescriptorName = "index"
	// FDInputSplice is read by splice(2) into FDStdin; its file offset is how
	// much input was delivered.
	FDInputSplice DescriptorName = "inputSplice"
	// FDInputData writes the same file, by pwrite(2).
	FDInputData DescriptorName = "inputData"
	// FDControlLog holds the control log.
	FDControlLog DescriptorName = "controlLog"
	// FDExitSpool takes the exit status by splice(2).
	FDExitSpool DescriptorName = "exitSpool"
	// FDExitRead reads the same file.
	FDExitRead DescriptorName = "exitRead"
	// FDCustody is a listening packet socket at which a later broker asks for
	// duplicates of all the others (Resume).
	FDCustody DescriptorName = "custody"
)

// Framing is what a profile says of the agent's bytes.
type Framing string

// Framings.
const (
	// FramingLines: a record ends with LF and only LF; bytes are opaque.
	FramingLines Framing = "lines"
	// FramingPi is FramingLines, and extension_ui_request records stay
	// pending until an extension_ui_response answers them; an input is one
	// or more whole lines.
	FramingPi Framing = "pi"
)

// Configure is the first message to a new bridge. The descriptors come with it by SCM_RIGHTS, in the order of Descriptors.
type Configure struct {
	Type        string           `cbor:"type"`
	Session     SessionID        `cbor:"session"`
	Epoch       Epoch            `cbor:"epoch"`
	Framing     Framing          `cbor:"framing"`
	Descriptors []DescriptorName `cbor:"descriptors"`
	// PeerUIDs are the users that may connect to the session's socket.
	PeerUIDs []uint64 `cbor:"peerUids"`
	// MaxRecord is the longest record that is numbered as one, in bytes; a
	// longer one is cut into pieces marked as continued.
	MaxRecord uint64 `cbor:"maxRecord"`
	// MaxInput is the longest input, in bytes.
	MaxInput uint64 `cbor:"maxInput"`
	// SpoolLimit is how much output may wait for an ack, in bytes.
	SpoolLimit uint64 `cbor:"spoolLimit"`
	// Overflow says what happens at SpoolLimit; empty means
	// OverflowBackpressure.
	Overflow Overflow `cbor:"overflow,omitempty"`
	// LeaseMillis is the lease of a writer that names none, MinLeaseMillis to
	// MaxLeaseMillis; 0 means as long as its connection lives.
	LeaseMillis uint64 `cbor:"leaseMillis,omitempty"`
}

// Overflow says what happens when output that waits for an ack is at its
// limit.
type Overflow string

// Overflow policies.
const (
	// OverflowBackpressure: the agent's output is not read until there is
	// room; nothing is lost.
	OverflowBackpressure Overflow = "backpressure"
	// OverflowDropOldest: the oldest whole records are dropped, and readers
	// that miss them are told CodeReplayGap.
	OverflowDropOldest Overflow = "drop-oldest"
)

// Resume is the first packet of a later broker, on a connection to FDCustody
// that takes the place of the socketpair. Resumed answers.
type Resume struct {
	Type    string    `cbor:"type"`
	Session SessionID `cbor:"session"`
	Epoch   Epoch     `cbor:"epoch"`
}

// Resumed brings duplicates of the bridge's descriptors by SCM_RIGHTS, in the
// order of Descriptors: all that were in its Configure and are still open.
type Resumed struct {
	Type        string           `cbor:"type"`
	Descriptors []DescriptorName `cbor:"descriptors"`
	// Exit is how the agent ended, if the bridge has recorded it.
	Exit *Exit `cbor:"exit,omitempty"`
	// Seat is the writer's. It is absent while this bridge has had no writer.
	Seat *Seat `cbor:"seat,omitempty"`
}

// Seat says whether a session has a writer.
type Seat struct {
	HasWriter bool `cbor:"hasWriter,omitempty"`
	// VacantMillis is how long ago the last writer went, by a clock that nobody
	// sets and that stands still while the host is suspended.
	VacantMillis uint64 `cbor:"vacantMillis,omitempty"`
	// Released says that a writer acknowledged the exit record and then gave
	// the seat back: nobody needs the session any more.
	Released bool `cbor:"released,omitempty"`
}

// BridgeSeat says that the seat has changed. The broker answers Done when that
// is durable.
type BridgeSeat struct {
	Type string `cbor:"type"`
	ID   uint64 `cbor:"id"`
	Seat Seat   `cbor:"seat"`
}

// Ready says that the bridge has recovered its files and accepts clients.
type Ready struct {
	Type         string `cbor:"type"`
	NextSequence uint64 `cbor:"nextSequence"`
}

// BridgeSignal asks the broker to signal the bridge's own session. Done or
// ErrorMessage answers.
type BridgeSignal struct {
	Type   string `cbor:"type"`
	ID     uint64 `cbor:"id"`
	Signal string `cbor:"signal"`
}

// BridgeAlive says, every BridgeAlivePeriod, that the bridge is not stopped and
// that its session does not hang. Nothing answers.
type BridgeAlive struct {
	Type string `cbor:"type"`
}

// BridgeAlivePeriod is the time between two BridgeAlive.
const BridgeAlivePeriod = 5 * time.Second

// BridgeInputClosed says that input has been drained and the bridge's end of
// the pipe is closed. The broker closes its own and answers Done.
type BridgeInputClosed struct {
	Type string `cbor:"type"`
	ID   uint64 `cbor:"id"`
}

// BridgeExit says that the exit pipe is at its end. The broker answers
// BridgeExitReason and removes the runtime's container.
type BridgeExit struct {
	Type string `cbor:"type"`
	ID   uint64 `cbor:"id"`
	// Status is what the sandbox's reaper wrote, verbatim, at most 4096 bytes.
	Status []byte `cbor:"status"`
	Exit   Exit   `cbor:"exit"`
}

// BridgeExitReason answers BridgeExit with why the session ended.
type BridgeExitReason struct {
	Type   string `cbor:"type"`
	ID     uint64 `cbor:"id"`
	Reason Reason `cbor:"reason"`
}

// Kind implements Message.
func (Configure) Kind() string { return "configure" }

// Kind implements Message.
func (Resume) Kind() string { return "resume" }

// Kind implements Message.
func (Resumed) Kind() string { return "resumed" }

// Kind implements Message.
func (Ready) Kind() string { return "ready" }

// Kind implements Message.
func (BridgeSignal) Kind() string { return "bridgeSignal" }

// Kind implements Message.
func (BridgeAlive) Kind() string { return "bridgeAlive" }

// Kind implements Message.
func (BridgeInputClosed) Kind() string { return "bridgeInputClosed" }

// Kind implements Message.
func (BridgeSeat) Kind() string { return "bridgeSeat" }

// Kind implements Message.
func (BridgeExit) Kind() string { return "bridgeExit" }

// Kind implements Message.
func (BridgeExitReason) Kind() string { return "bridgeExitReason" }
