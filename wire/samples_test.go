package wire

import "strings"

// sets names the sets as the vectors and the grammar do.
var sets = map[string]Set{
	"broker-request": BrokerRequests,
	"broker-reply":   BrokerReplies,
	"bridge-request": BridgeRequests,
	"bridge-reply":   BridgeReplies,
	"to-bridge":      ToBridge,
	"from-bridge":    FromBridge,
}

type sample struct {
	set  string
	name string
	m    Message
}

const (
	sampleSession SessionID = "0198c0de00007000800000000000beef"
	sampleEpoch   Epoch     = "0011223344556677"
	sampleLease             = "b7e23ec29af22b0b4e41da31e868d572"
)

var (
	sampleExit   = Exit{Reason: ReasonExited}
	sampleKilled = Exit{Code: 137, Signal: "KILL", Reason: ReasonOutOfMemory, InputDelivered: 10, InputAccepted: MaxInteger}
	sampleInfo   = SessionInfo{
		Session: sampleSession, Deployment: "home", Workspace: "site", Profile: "pi", State: StateCreating,
	}
	sampleFullInfo = SessionInfo{
		Session: sampleSession, Deployment: "home", Workspace: "site", Folder: "packages/a b", Profile: "pi", State: StateExited, Epoch: sampleEpoch,
		Socket: "s/" + string(sampleSession) + ".sock", CreatedAt: 1_790_000_000_000, Container: string(sampleSession),
		SandboxPID: 4321, SandboxStart: 987654, BridgePID: 4322, BridgeStart: 987655, Exit: &sampleKilled,
		HasWriter: true, VacantMillis: 1, Due: DueDelete, DueMillis: MaxInteger,
	}
	sampleSeat      = Seat{HasWriter: true, VacantMillis: MaxInteger, Released: true}
	sampleError     = ErrorMessage{Code: CodeInternal, Message: "something broke"}
	sampleFullError = ErrorMessage{ID: 9, Code: CodeReplayGap, Message: "records before 5 are gone", Advice: "attach at the oldest", LostBefore: 5}
)

// samples holds each message of each set in its smallest form and with every
// key present.
func samples() []sample {
	var all []sample
	add := func(set string, minimal, full Message) {
		all = append(all, sample{set, minimal.Kind() + "-minimal", minimal})
		if full != nil {
			all = append(all, sample{set, minimal.Kind() + "-full", full})
		}
	}

	for _, set := range []string{"broker-request", "broker-reply"} {
		add(set, Hello{Protocol: ProtocolBroker, Versions: []uint64{1}, MaxFrame: MaxBrokerFrame}, nil)
	}
	for _, set := range []string{"bridge-request", "bridge-reply"} {
		add(set, Hello{Protocol: ProtocolBridge, Versions: []uint64{1}, MaxFrame: MaxBridgeFrame},
			Hello{Protocol: ProtocolBridge, Versions: []uint64{1, 2, 24, 256, 65536}, MaxFrame: MaxInteger})
	}
	for _, set := range []string{"broker-reply", "bridge-reply", "to-bridge", "from-bridge"} {
		add(set, sampleError, sampleFullError)
	}
	for _, set := range []string{"broker-reply", "bridge-reply", "to-bridge"} {
		add(set, Done{ID: 1}, Done{ID: MaxInteger})
	}

	add("broker-request", Create{ID: 1, Workspace: "site"}, Create{
		ID: 2, Workspace: "site", Folder: "packages/a b", Profile: "pi", AgentSession: "0198c0de-0000-7000-8000-00000000beef",
		Model: "anthropic/claude-sonnet-4.5:beta", Thinking: "high",
		Attachments: []Attachment{
			{Kind: AttachmentExtension, Name: "a.ts", Data: []byte("export default () => {}\n")},
			{Kind: AttachmentExtension, Name: "empty", Data: []byte{}},
			{Kind: AttachmentMCPConfig, Name: "mcp.json", Data: []byte("{}")},
		},
	})
	all = append(all, sample{"broker-request", "create-path", Create{ID: 3, Path: "/workspace/" + strings.Repeat("é", MaxPathElement/2)}})
	add("broker-request", InspectSession{ID: 3, Session: sampleSession}, nil)
	add("broker-request", ListSessions{ID: 4}, ListSessions{ID: 5, After: sampleSession})
	add("broker-request", SignalSession{ID: 6, Session: sampleSession, Signal: "INT"}, nil)
	add("broker-request", TerminateSession{ID: 7, Session: sampleSession}, TerminateSession{ID: 7, Session: sampleSession, GraceMillis: MaxGraceMillis})
	add("broker-request", DeleteSession{ID: 8, Session: sampleSession}, nil)
	add("broker-request", Reload{ID: 9}, nil)
	add("broker-request", Collect{ID: 9}, Collect{ID: 10, DryRun: true, After: sampleSession})
	add("broker-request", Describe{ID: 9}, Describe{ID: 10, Deployment: "home"})

	add("broker-reply", Created{ID: 1, Session: sampleInfo}, Created{ID: 2, Session: sampleFullInfo})
	add("broker-reply", SessionReply{ID: 3, Session: sampleInfo}, SessionReply{ID: 4, Session: sampleFullInfo})
	add("broker-reply", SessionList{ID: 5, Sessions: []SessionInfo{}}, SessionList{ID: 6, Sessions: []SessionInfo{sampleInfo, sampleFullInfo}, More: true})
	add("broker-reply", Collected{ID: 7, Findings: []Finding{}}, Collected{ID: 8, More: true, Findings: []Finding{
		{Session: sampleSession, Kind: FoundSession, Name: string(sampleSession), Reason: WhyAbandoned},
		{Session: sampleSession, Kind: FoundSpool, Name: "/var/lib/paseo-sandbox/spool/" + string(sampleSession), Reason: WhyNoRecord, AgeMillis: 60_000, Failed: CodeInternal},
	}})
	add("broker-reply", Deployment{ID: 7, Deployment: "home", Workspaces: []WorkspaceInfo{}, Profiles: []string{}}, Deployment{
		ID: 8, Deployment: "home",
		Workspaces: []WorkspaceInfo{
			{Name: "site", UID: 1000, GID: 1000},
			{Name: "docs", ReadOnly: true, Subfolders: true, ClientPath: "/workspace/docs", Root: "/srv/docs", UID: MaxUID, GID: 0},
		},
		Profiles: []string{"pi", "raw"}, DefaultProfile: "pi", PeerUIDs: []uint64{0, 1000, MaxUID},
	})

	add("bridge-request", Attach{ID: 1, Mode: ModeObserver, From: FromLive}, Attach{
		ID: 2, Mode: ModeWriter, From: FromCursor, Cursor: &Cursor{Epoch: sampleEpoch, Sequence: 9}, Takeover: true, Client: "daemon-2", LeaseMillis: MinLeaseMillis,
	})
	add("bridge-request", Ack{ID: 3, Cursor: Cursor{Epoch: sampleEpoch}}, Ack{ID: 3, Lease: sampleLease, Cursor: Cursor{Epoch: sampleEpoch, Sequence: MaxInteger}})
	add("bridge-request", Input{ID: 4, InputID: "a", Data: []byte("\n")}, Input{
		ID: 5, Lease: sampleLease, InputID: strings.Repeat("é", MaxInputID/2), Offset: MaxFragment, More: true, Data: []byte{0, 0xff, '\r', '\n', 0xe2, 0x80, 0xa8},
	})
	add("bridge-request", CloseInput{ID: 6}, CloseInput{ID: 6, Lease: sampleLease})
	add("bridge-request", Signal{ID: 7, Signal: "USR1"}, Signal{ID: 7, Lease: sampleLease, Signal: "KILL"})
	add("bridge-request", Terminate{ID: 8}, Terminate{ID: 8, Lease: sampleLease, GraceMillis: MaxGraceMillis})
	add("bridge-request", Release{ID: 9}, Release{ID: 9, Lease: sampleLease})
	add("bridge-request", Inspect{ID: 10}, nil)
	add("bridge-request", Ping{ID: 11}, nil)

	pending := []PendingRequest{{RequestID: "r1", Sequence: 1}, {RequestID: strings.Repeat("x", MaxRequestID), Sequence: MaxInteger}}
	add("bridge-reply", Attached{ID: 1, Session: sampleSession, Epoch: sampleEpoch, NextSequence: 1}, Attached{
		ID: 2, Session: sampleSession, Epoch: sampleEpoch, Lease: sampleLease, LeaseMillis: MaxLeaseMillis, Generation: 3, NextSequence: 77, LostBefore: 12, Acked: 11,
		Pending: pending, InputClosed: true, Exit: &sampleExit,
	})
	add("bridge-reply", Acked{ID: 3}, Acked{ID: 3, Sequence: MaxInteger})
	add("bridge-reply", Accepted{ID: 4, InputID: "a"}, Accepted{ID: 4, InputID: "a", Duplicate: true})
	add("bridge-reply", Status{ID: 5, Session: sampleSession, Epoch: sampleEpoch, NextSequence: 1}, Status{
		ID: 6, Session: sampleSession, Epoch: sampleEpoch, BridgePID: 4322, Generation: 3, Writer: "daemon-2", HasWriter: true, Observers: 2,
		NextSequence: 77, LostBefore: 12, Acked: 11, StdoutBytes: 1 << 40, StderrBytes: 255, InputAccepted: 65536, InputDelivered: 65535,
		SpoolBytes: 1 << 32, SpoolLimit: 1<<32 - 1, OutputStalled: true, StallReason: StallStorage, Pending: pending,
		LeaseMillis: 30_000, LeaseRemainingMillis: 29_999, Framing: FramingPi, Overflow: OverflowDropOldest, DroppedRecords: 3, DroppedBytes: 1 << 33,
		InputClosed: true, Exit: &sampleKilled,
	})
	add("bridge-reply", Pong{ID: 7}, nil)
	add("bridge-reply", Fenced{Generation: 2}, nil)
	exitData, err := EncodeExit(sampleKilled)
	if err != nil {
		panic(err)
	}
	add("bridge-reply", Records{Records: []Record{{Sequence: 1, Stream: StreamStdout, Data: []byte("\n")}}}, Records{Records: []Record{
		{Sequence: 24, Stream: StreamStdout, Flags: FlagMore, Data: []byte{0, 0xff}},
		{Sequence: 24, Stream: StreamStdout, Flags: FlagContinued, Offset: 2, Data: []byte("{\"a\":\"\u2028\"}\r\n")},
		{Sequence: 1 << 16, Stream: StreamStderr, Flags: FlagMore | FlagContinued, Offset: MaxInteger - MaxFragment, Data: []byte("x")},
		{Sequence: MaxInteger, Stream: StreamExit, Data: exitData},
	}})
	all = append(all,
		sample{"bridge-reply", "records-pending-minimal", Records{Pending: true, Records: []Record{{Sequence: 1, Stream: StreamStdout, Data: []byte("\n")}}}},
		sample{"bridge-reply", "records-pending-full", Records{Pending: true, Records: []Record{
			{Sequence: 7, Stream: StreamStdout, Flags: FlagMore, Data: []byte("{\"type\":\"extension_ui_request\",")},
			{Sequence: 7, Stream: StreamStdout, Offset: 31, Data: []byte("\"id\":\"r1\"}\n")},
		}}})

	add("to-bridge", Configure{Session: sampleSession, Epoch: sampleEpoch, Framing: FramingLines, Descriptors: []DescriptorName{FDStdout}, PeerUIDs: []uint64{}, MaxRecord: 1, MaxInput: 1, SpoolLimit: 1},
		Configure{
			Session: sampleSession, Epoch: sampleEpoch, Framing: FramingPi, Descriptors: descriptorNames,
			PeerUIDs: []uint64{0, 1000}, MaxRecord: 64 << 20, MaxInput: 64 << 20, SpoolLimit: 1 << 30,
			Overflow: OverflowBackpressure, LeaseMillis: 60_000,
		})
	add("to-bridge", Resume{Session: sampleSession, Epoch: sampleEpoch}, nil)
	add("to-bridge", BridgeExitReason{ID: 1, Reason: ReasonUnknown}, nil)

	add("from-bridge", Ready{NextSequence: 1}, Ready{NextSequence: MaxInteger})
	add("from-bridge", Resumed{Descriptors: []DescriptorName{FDIndex}}, Resumed{Descriptors: descriptorNames, Exit: &sampleKilled, Seat: &sampleSeat})
	add("from-bridge", BridgeSignal{ID: 1, Signal: "TERM"}, nil)
	add("from-bridge", BridgeInputClosed{ID: 2}, nil)
	add("from-bridge", BridgeAlive{}, nil)
	add("from-bridge", BridgeSeat{ID: 2}, BridgeSeat{ID: 3, Seat: sampleSeat})
	add("from-bridge", BridgeExit{ID: 3, Status: []byte{}, Exit: sampleExit}, BridgeExit{ID: 3, Status: []byte("{\"id\":\"x\",\"exitStatus\":137}\n"), Exit: sampleKilled})
	return all
}

// exit draws an exit whose fields agree with each other.
func (g generator) exit() Exit {
	accepted := integer(g, 0, MaxInteger)
	e := Exit{Code: int64(integer(g, 0, 255)), Reason: sampled(g, reasons), InputAccepted: accepted, InputDelivered: integer(g, 0, accepted)}
	if g.oneIn(2) {
		e.Code, e.Signal = int64(integer(g, 129, 255)), sampled(g, []string{"KILL", "SEGV", "RTMIN+3"})
	}
	return e
}
