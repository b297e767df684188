package story

import (
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Verdicts of a report.
const (
	VerdictProved    = "active_turn_continuity_proved"
	VerdictNotProved = "active_turn_continuity_not_proved"
)

// Report is the demo's last line of output. Each flag is true only when the
// evidence shows it.
type Report struct {
	Verdict string `json:"verdict"`

	SameRuntime                    bool `json:"sameRuntime"`
	WriterFencePassed              bool `json:"writerFencePassed"`
	SawReplayedRecord              bool `json:"sawReplayedRecord"`
	DuplicateReplaySuppressed      bool `json:"duplicateReplaySuppressed"`
	BashCancelled                  bool `json:"bashCancelled"`
	PiSessionStable                bool `json:"piSessionStable"`
	StaleLeaseRejected             bool `json:"staleLeaseRejected"`
	ExactlyOnceInput               bool `json:"exactlyOnceInput"`
	ExtensionUIAnsweredAfterAttach bool `json:"extensionUiAnsweredAfterReattach"`
	RunscContainerRemoved          bool `json:"runscContainerRemoved"`
	NothingLeftBehind              bool `json:"nothingLeftBehind"`

	Evidence Evidence `json:"evidence"`
	// Error is what ended the story early, if anything did.
	Error string `json:"error,omitempty"`
}

// Evidence is what was observed, and nothing else.
type Evidence struct {
	Before Side `json:"before"`
	After  Side `json:"after"`

	// SecondWriter is the code that a second writer got while the first lived.
	SecondWriter string `json:"secondWriter"`
	// TicksAtKill and TicksAlone count the running command's output right
	// after the kill and a moment later, with no daemon there.
	TicksAtKill int `json:"ticksAtKill"`
	TicksAlone  int `json:"ticksAlone"`

	// Unacked is the record that daemon one had received but not acked.
	Unacked RecordSeen `json:"unacked"`
	// Replayed is the same place as daemon two saw it.
	Replayed RecordSeen `json:"replayed"`
	// Suppressed counts the records that daemon two recognised as seen.
	Suppressed int `json:"suppressed"`
	// ProcessedTwice counts the records that daemon two took for new although
	// daemon one had processed the same bytes.
	ProcessedTwice int `json:"processedTwice"`

	// ResentDuplicate is the answer to the resent input; OnceLines how often
	// it took effect.
	ResentDuplicate bool `json:"resentDuplicate"`
	OnceLines       int  `json:"onceLines"`

	// StaleLease is the code that the dead daemon's lease got; StaleEffect
	// says whether the input had an effect all the same.
	StaleLease  string `json:"staleLease"`
	StaleEffect bool   `json:"staleEffect"`

	// DialogID is the pending request's; DialogPending whether it was listed
	// after the reattach; DialogResult what the extension made of the answer.
	DialogID      string `json:"dialogId"`
	DialogPending bool   `json:"dialogPending"`
	DialogResult  string `json:"dialogResult"`

	// BashResult is the answer to the cancelled command.
	BashResult string `json:"bashResult"`

	// ExitCode and ExitReason tell how Pi ended.
	ExitCode   int64       `json:"exitCode"`
	ExitReason wire.Reason `json:"exitReason"`
	// Containers are those that runsc still knew after the end.
	Containers []string `json:"containers"`
	// LeftBehind lists what was found after the end; see harness.Leftovers.
	LeftBehind []string `json:"leftBehind"`
	// Checked says that Containers and LeftBehind were looked for.
	Checked bool `json:"checked"`
}

// Side is what one daemon, or somebody beside it, saw of the session.
type Side struct {
	Container    string `json:"container"`
	SandboxPID   uint64 `json:"sandboxPid"`
	SandboxStart uint64 `json:"sandboxStart"`
	BridgePID    uint64 `json:"bridgePid"`
	BridgeStart  uint64 `json:"bridgeStart"`
	PiSession    string `json:"piSession"`
	// Alive says that the kernel knew both processes by pid and start time.
	Alive      bool   `json:"alive"`
	DaemonPID  int    `json:"daemonPid"`
	Generation uint64 `json:"generation"`
	Cursor     Cursor `json:"cursor"`
}

// Cursor is a durable cursor.
type Cursor struct {
	Epoch    wire.Epoch `json:"epoch"`
	Sequence uint64     `json:"sequence"`
}

// RecordSeen is a record as a daemon saw it.
type RecordSeen struct {
	Sequence uint64 `json:"sequence"`
	SHA256   string `json:"sha256"`
}

// answeredText is what the extension prints once its dialog was confirmed.
const answeredText = "ask answered: true"

// judge computes the flags and the verdict from the evidence.
func (r *Report) judge() {
	e := &r.Evidence
	b, a := e.Before, e.After
	r.SameRuntime = b.Container != "" && b.Container == a.Container &&
		b.SandboxPID != 0 && b.SandboxPID == a.SandboxPID && b.SandboxStart == a.SandboxStart &&
		b.BridgePID != 0 && b.BridgePID == a.BridgePID && b.BridgeStart == a.BridgeStart &&
		b.Alive && a.Alive && b.DaemonPID != a.DaemonPID && e.TicksAlone > e.TicksAtKill
	r.WriterFencePassed = e.SecondWriter == string(wire.CodeWriterAlreadyAttached)
	r.SawReplayedRecord = e.Unacked.Sequence > b.Cursor.Sequence && e.Unacked.SHA256 != "" && e.Replayed == e.Unacked
	r.DuplicateReplaySuppressed = e.Suppressed > 0 && e.ProcessedTwice == 0
	r.BashCancelled = e.BashResult == "cancelled"
	r.PiSessionStable = b.PiSession != "" && b.PiSession == a.PiSession
	r.StaleLeaseRejected = e.StaleLease == string(wire.CodeStaleWriter) && !e.StaleEffect && a.Generation > b.Generation
	r.ExactlyOnceInput = e.ResentDuplicate && e.OnceLines == 1
	r.ExtensionUIAnsweredAfterAttach = e.DialogID != "" && e.DialogPending && e.DialogResult == answeredText
	r.RunscContainerRemoved = e.Checked && b.Container != "" && len(e.Containers) == 0
	r.NothingLeftBehind = e.Checked && len(e.LeftBehind) == 0
	r.Verdict = VerdictNotProved
	if r.Error == "" && r.proved() {
		r.Verdict = VerdictProved
	}
}

func (r *Report) proved() bool {
	return r.SameRuntime && r.WriterFencePassed && r.SawReplayedRecord && r.DuplicateReplaySuppressed &&
		r.BashCancelled && r.PiSessionStable && r.StaleLeaseRejected && r.ExactlyOnceInput &&
		r.ExtensionUIAnsweredAfterAttach && r.RunscContainerRemoved && r.NothingLeftBehind
}
