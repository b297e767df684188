package wire

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

// A message may be a pointer, its type may be unset or wrong, and the value
// given is not changed.
func TestEncodeTakesValuesAndPointers(t *testing.T) {
	want, err := Encode(Ping{Type: "ping", ID: 7})
	if err != nil {
		t.Fatal(err)
	}
	wrong := Ping{Type: "pong", ID: 7}
	for _, m := range []Message{Ping{ID: 7}, &Ping{ID: 7}, &wrong} {
		if got, err := Encode(m); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%+v: %x, %v", m, got, err)
		}
	}
	if wrong.Type != "pong" {
		t.Error("the message was changed")
	}
	r := Records{Records: []Record{{Sequence: 1, Stream: StreamStdout, Data: []byte("x")}}}
	a, _ := Encode(r)
	if b, err := Encode(&r); err != nil || !bytes.Equal(a, b) {
		t.Errorf("a pointer to records: %x, %v", b, err)
	}
}

// foreign is not a message of the protocol.
type foreign struct{ A int }

func (foreign) Kind() string { return "foreign" }

func (foreign) Validate() error { return nil }

func TestEncodeRefusesWhatIsNoMessage(t *testing.T) {
	for _, m := range []Message{nil, (*Ping)(nil), foreign{}} {
		dst, err := AppendMessage([]byte("kept"), m)
		if CodeOf(err) != CodeInternal || string(dst) != "kept" {
			t.Errorf("%T: %q, %v", m, dst, err)
		}
	}
}

// Each type of each set has its type first, and keys that the scanner lets
// through.
func TestTypesHaveTheRightShape(t *testing.T) {
	for name, set := range sets {
		for kind, typ := range set {
			if kind == recordsKind {
				continue
			}
			if f := typ.Field(0); f.Name != "Type" || f.Tag.Get("cbor") != "type" {
				t.Errorf("%s %s: the first field is %s", name, kind, f.Name)
			}
			if typ.NumField() > maxPairs {
				t.Errorf("%s: %d keys, the limit is %d", kind, typ.NumField(), maxPairs)
			}
			for i := range typ.NumField() {
				if key, _ := fieldKey(typ.Field(i)); key == "" || len(key) > maxKey {
					t.Errorf("%s: the key of %s is %q", kind, typ.Field(i).Name, key)
				}
			}
		}
	}
}

// The limits of large fields, whose vectors would be too large to keep.
func TestLargeFieldsAtTheirLimits(t *testing.T) {
	input := func(n int) Message { return Input{ID: 1, InputID: "a", Data: make([]byte, n)} }
	attachment := func(n int) Message {
		return Create{ID: 1, Workspace: "w", Attachments: []Attachment{
			{Kind: AttachmentExtension, Name: "a", Data: make([]byte, 1)},
			{Kind: AttachmentExtension, Name: "b", Data: make([]byte, n-1)},
		}}
	}
	record := func(n int) Message {
		return Records{Records: []Record{{Sequence: 1, Stream: StreamStdout, Data: make([]byte, n)}}}
	}
	tests := []struct {
		name  string
		set   Set
		make  func(int) Message
		limit int
		code  Code
		// decoded is the code on the receiving side, where a structural limit
		// may come first.
		decoded Code
	}{
		{"input", BridgeRequests, input, MaxFragment, CodeInvalidInput, CodeInvalidMessage},
		{"record", BridgeReplies, record, MaxFragment, CodeInvalidMessage, CodeInvalidMessage},
		{"attachments", BrokerRequests, attachment, MaxAttachmentBytes, CodeInvalidAttachment, CodeInvalidAttachment},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b, err := Encode(test.make(test.limit))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Decode(test.set, b); err != nil {
				t.Fatal(err)
			}
			over := test.make(test.limit + 1)
			if _, err := Encode(over); CodeOf(err) != test.code {
				t.Errorf("encoding one byte more: %v", err)
			}
			if _, err := Decode(test.set, encodeUnchecked(t, over)); CodeOf(err) != test.decoded {
				t.Errorf("decoding one byte more: %v", err)
			}
		})
	}
}

// What a message can hold at most fits into the frames that it travels in.
func TestLargestMessagesFit(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	exit := &Exit{Code: 255, Signal: "RTMIN+15RTMIN+15", Reason: ReasonOutOfMemory, InputDelivered: MaxInteger, InputAccepted: MaxInteger}
	info := SessionInfo{
		Session: sampleSession, Deployment: long(MaxDeployment), Workspace: long(MaxName), Profile: long(MaxName), State: StateUnattached,
		Epoch: sampleEpoch, Socket: long(MaxSocketPath), CreatedAt: MaxInteger, Container: long(MaxName),
		SandboxPID: MaxInteger, SandboxStart: MaxInteger, BridgePID: MaxInteger, BridgeStart: MaxInteger, Exit: exit,
		Folder:    strings.Repeat(long(MaxPathElement)+"/", MaxPath/(MaxPathElement+1)-1) + long(MaxPathElement),
		HasWriter: true, VacantMillis: MaxInteger, Due: DueDelete, DueMillis: MaxInteger,
	}
	pending := make([]PendingRequest, MaxPending)
	for i := range pending {
		pending[i] = PendingRequest{RequestID: long(MaxRequestID), Sequence: MaxInteger}
	}
	page := SessionList{ID: MaxInteger, More: true}
	for range MaxSessionPage {
		page.Sessions = append(page.Sessions, info)
	}
	found := Collected{ID: MaxInteger, More: true}
	for range MaxFindings {
		found.Findings = append(found.Findings, Finding{
			Session: sampleSession, Kind: Code(long(MaxName)), Name: long(MaxFinding), Reason: Code(long(MaxName)), AgeMillis: MaxInteger, Failed: Code(long(MaxName)),
		})
	}
	create := Create{ID: MaxInteger, Workspace: long(MaxName), Profile: long(MaxName), AgentSession: long(MaxName), Model: long(MaxModel/2) + "/" + long(MaxModel/2-1), Thinking: "minimal"}
	for i := range MaxAttachments {
		create.Attachments = append(create.Attachments, Attachment{Kind: AttachmentExtension, Name: string(rune('a'+i)) + long(MaxName-1), Data: make([]byte, MaxAttachmentBytes/MaxAttachments)})
	}
	configure := Configure{Session: sampleSession, Epoch: sampleEpoch, Framing: FramingLines, Descriptors: descriptorNames, PeerUIDs: make([]uint64, MaxPeerUIDs), MaxRecord: MaxInteger, MaxInput: MaxInteger, SpoolLimit: MaxInteger}
	for _, m := range []Message{
		page, found, create, configure,
		ErrorMessage{ID: MaxInteger, Code: CodeReplayGap, Message: long(MaxText), Advice: long(MaxText), LostBefore: MaxInteger},
		Attached{ID: MaxInteger, Session: sampleSession, Epoch: sampleEpoch, Lease: long(MaxLease), Generation: MaxInteger, NextSequence: MaxInteger, LostBefore: MaxInteger, Acked: MaxInteger, Pending: pending, InputClosed: true, Exit: exit},
		Status{ID: MaxInteger, Session: sampleSession, Epoch: sampleEpoch, BridgePID: MaxInteger, Generation: MaxInteger, Writer: long(MaxClient), NextSequence: MaxInteger, StdoutBytes: MaxInteger, Pending: pending, Exit: exit},
		BridgeExit{ID: MaxInteger, Status: make([]byte, MaxExitStatus), Exit: *exit},
	} {
		b, err := Encode(m)
		if err != nil || len(b) > MinPeerFrame {
			t.Errorf("%s: %d bytes, %v", m.Kind(), len(b), err)
		}
	}
	if b, err := EncodeExit(*exit); err != nil || len(b) > MaxExitRecord {
		t.Errorf("exit: %d bytes, %v", len(b), err)
	}
}

// What a hostile frame makes the decoder allocate stays within a small
// multiple of the frame, also when it is refused.
func TestDecodeAllocatesLittle(t *testing.T) {
	nested := bytes.Repeat([]byte{0x81}, MaxBridgeFrame)
	smallest := append([]byte{0x82, 0x00, 0x9a, 0x00, 0x02, 0x00, 0x00}, bytes.Repeat([]byte{0x85, 1, 1, 0, 0, 0x41, 'x'}, 1<<17)...)
	list := append([]byte("\xa3\x62id\x07\x64type\x6bsessionList\x68sessions\x99\x04\x00"), make([]byte, 1024)...)
	for name, c := range map[string]struct {
		set     Set
		payload []byte
	}{
		"nested":              {BridgeReplies, nested},
		"smallest records":    {BridgeReplies, smallest},
		"sessions of nothing": {BrokerReplies, list},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Decode(c.set, c.payload)
		runtime.ReadMemStats(&after)
		if got, limit := after.TotalAlloc-before.TotalAlloc, uint64(8*len(c.payload)+512<<10); got > limit {
			t.Errorf("%s: %d bytes for a frame of %d (%v)", name, got, len(c.payload), err)
		}
	}
}

func TestReadFrameEnds(t *testing.T) {
	if _, err := ReadFrame(strings.NewReader(""), 8, nil); err != io.EOF {
		t.Errorf("the end between frames is %v", err)
	}
	broken := errors.New("broken")
	for _, stream := range []string{"", "\x00\x00", "\x00\x00\x00\x05", "\x00\x00\x00\x05abc"} {
		_, err := ReadFrame(io.MultiReader(strings.NewReader(stream), iotest.ErrReader(broken)), 8, nil)
		if !errors.Is(err, broken) {
			t.Errorf("%q: a failing stream is %v", stream, err)
		}
	}
	got, err := ReadFrame(iotest.OneByteReader(strings.NewReader("\x00\x00\x00\x03abcd")), 3, make([]byte, 1))
	if err != nil || string(got) != "abc" {
		t.Errorf("%q, %v", got, err)
	}
}
