package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// generator draws messages by reflection. With wild set, about one field in
// ten gets a value that nothing limits.
type generator struct {
	t    *rapid.T
	wild bool
}

func (g generator) oneIn(n int) bool { return rapid.IntRange(0, n-1).Draw(g.t, "chance") == 0 }

func hexString(g generator, n int) string {
	return hex.EncodeToString(rapid.SliceOfN(rapid.Byte(), n/2, n/2).Draw(g.t, "hex"))
}

func sampled[T any](g generator, from []T) T { return rapid.SampledFrom(from).Draw(g.t, "sample") }

func name(g generator, most int) string {
	return rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._-]*`).Filter(func(s string) bool { return len(s) <= most }).Draw(g.t, "name")
}

func text(g generator, least, most int) string {
	return rapid.String().Filter(func(s string) bool { return len(s) >= least && len(s) <= most }).Draw(g.t, "text")
}

// integers that stand at the edges of CBOR's head sizes come often.
func integer(g generator, least, most uint64) uint64 {
	edges := []uint64{least, most}
	for _, e := range []uint64{0, 1, 23, 24, 255, 256, 65535, 65536, 1<<32 - 1, 1 << 32, MaxInteger} {
		if e >= least && e <= most {
			edges = append(edges, e)
		}
	}
	return rapid.OneOf(rapid.SampledFrom(edges), rapid.Uint64Range(least, most)).Draw(g.t, "integer")
}

func (g generator) message(typ reflect.Type) Message {
	v := reflect.New(typ).Elem()
	g.fill(v, "")
	return v.Interface().(Message)
}

func (g generator) fill(v reflect.Value, key string) {
	if g.wild && key != "type" && g.oneIn(10) && g.fillWild(v) {
		return
	}
	switch v.Interface().(type) {
	case SessionID:
		if key == "after" && g.oneIn(2) {
			return
		}
		v.SetString(hexString(g, 32))
		return
	case Epoch:
		v.SetString(hexString(g, 16))
		return
	case Mode:
		v.SetString(string(sampled(g, []Mode{ModeWriter, ModeObserver})))
		return
	case From:
		v.SetString(string(sampled(g, []From{FromOldest, FromCursor, FromLive})))
		return
	case Protocol:
		v.SetString(string(sampled(g, []Protocol{ProtocolBroker, ProtocolBridge})))
		return
	case Code:
		if key == "failed" && g.oneIn(2) {
			return
		}
		v.SetString(string(sampled(g, []Code{CodeInternal, CodeReplayGap, "x", "a_9"})))
		return
	case Reason:
		v.SetString(string(sampled(g, reasons)))
		return
	case Due:
		v.SetString(string(sampled(g, append([]Due{""}, dues...))))
		return
	case State:
		v.SetString(string(sampled(g, states)))
		return
	case Framing:
		v.SetString(string(sampled(g, []Framing{FramingLines, FramingPi})))
		return
	case Overflow:
		v.SetString(string(sampled(g, []Overflow{"", OverflowBackpressure, OverflowDropOldest})))
		return
	case StallReason:
		v.SetString(string(sampled(g, stallReasons)))
		return
	case AttachmentKind:
		v.SetString(string(AttachmentExtension)) // a session has one of the other kind at most
		return
	case Stream:
		v.SetUint(uint64(sampled(g, []Stream{StreamStdout, StreamStderr})))
		return
	case Flags:
		v.SetUint(uint64(sampled(g, []Flags{0, FlagMore, FlagContinued, FlagMore | FlagContinued})))
		return
	case []DescriptorName:
		names := rapid.SliceOfNDistinct(rapid.SampledFrom(descriptorNames), 1, len(descriptorNames), rapid.ID).Draw(g.t, "descriptors")
		v.Set(reflect.ValueOf(names))
		return
	case Exit:
		v.Set(reflect.ValueOf(g.exit()))
		return
	case []byte:
		least := 1
		if key == "status" {
			least = 0
		}
		v.SetBytes(rapid.SliceOfN(rapid.Byte(), least, 300).Draw(g.t, "bytes"))
		return
	}
	g.fillKind(v, key)
}

func (g generator) fillKind(v reflect.Value, key string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(g.string(key))
	case reflect.Bool:
		v.SetBool(g.oneIn(2))
	case reflect.Uint64:
		v.SetUint(g.uint(key))
	case reflect.Pointer:
		if g.oneIn(2) {
			v.Set(reflect.New(v.Type().Elem()))
			g.fill(v.Elem(), key)
		}
	case reflect.Slice:
		if key == "versions" {
			v.Set(reflect.ValueOf([]uint64{1, 2 + integer(g, 0, 1<<40)}))
			return
		}
		n := rapid.IntRange(0, 3).Draw(g.t, "length")
		if v.Type() == reflect.TypeFor[[]Record]() {
			n++
		}
		if n == 0 && g.oneIn(2) {
			return // nil, not empty
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			g.fill(v.Index(i), key)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			k, _ := fieldKey(f)
			if k == "" {
				k = f.Name
			}
			if k == "type" && i == 0 {
				continue
			}
			g.fill(v.Field(i), k)
		}
		g.mend(v)
	default:
		g.t.Fatalf("no generator for %s", v.Type())
	}
}

// mend makes the fields of a struct agree with each other.
func (g generator) mend(v reflect.Value) {
	if g.wild {
		return
	}
	switch m := v.Addr().Interface().(type) {
	case *Attach:
		if m.Cursor = nil; m.From == FromCursor {
			m.Cursor = &Cursor{Epoch: sampleEpoch, Sequence: integer(g, 0, MaxInteger)}
		}
		if m.Mode != ModeWriter {
			m.Takeover, m.LeaseMillis = false, 0
		}
	case *ErrorMessage:
		if m.Code != CodeReplayGap {
			m.LostBefore = 0
		}
	case *Records:
		for i := range m.Records {
			if m.Pending {
				m.Records[i].Stream = StreamStdout
			}
		}
	case *Create:
		if g.oneIn(2) {
			m.Workspace = ""
		} else {
			m.Path = ""
		}
		for i := range m.Attachments {
			m.Attachments[i].Name = string('a'+rune(i)) + m.Attachments[i].Name[1:]
		}
	}
}

func (g generator) string(key string) string {
	switch key {
	case "signal":
		return sampled(g, signals)
	case "deployment":
		return name(g, MaxDeployment)
	case "model":
		return sampled(g, []string{"", "a/b", "openrouter/x/y:free@1"})
	case "thinking":
		return sampled(g, append([]string{""}, thinkingLevels...))
	case "socket":
		return sampled(g, []string{"", "s/x.sock", "a"})
	case "path":
		return sampled(g, []string{"/workspace", "/a/b c/é"})
	case "folder":
		return sampled(g, []string{"", "a", "a/...", "é/-x"})
	case "clientPath":
		return sampled(g, []string{"", "/workspace/site"})
	case "root":
		return sampled(g, []string{"", "/", "/srv/x y"})
	case "workspace", "profile", "name", "container", "agentSession", "defaultProfile", "profiles":
		return name(g, MaxName)
	case "lease", "client", "writer", "advice":
		return text(g, 0, 128)
	default:
		return text(g, 1, 128)
	}
}

func (g generator) uint(key string) uint64 {
	switch key {
	case "graceMillis":
		return integer(g, 0, MaxGraceMillis)
	case "leaseMillis", "leaseRemainingMillis":
		return sampled(g, []uint64{0, MinLeaseMillis, MaxLeaseMillis})
	case "uid", "gid", "peerUids":
		return integer(g, 0, MaxUID)
	case "maxFrame":
		return integer(g, MinPeerFrame, MaxInteger)
	case "offset", "Offset":
		return integer(g, 0, MaxInteger-MaxFragment)
	case "id", "generation", "nextSequence", "sequence", "Sequence", "maxRecord", "maxInput", "spoolLimit":
		return integer(g, 1, MaxInteger)
	}
	return integer(g, 0, MaxInteger)
}

// fillWild sets any value that the type can hold; it leaves composite ones.
func (g generator) fillWild(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String:
		v.SetString(string(rapid.SliceOf(rapid.Byte()).Draw(g.t, "wild")))
	case reflect.Uint64:
		v.SetUint(rapid.Uint64().Draw(g.t, "wild"))
	case reflect.Int64:
		v.SetInt(rapid.Int64().Draw(g.t, "wild"))
	case reflect.Uint8:
		v.SetUint(uint64(rapid.Byte().Draw(g.t, "wild")))
	case reflect.Slice, reflect.Pointer:
		v.SetZero()
	default:
		return false
	}
	return true
}

// eachMessage runs a property on every type of every set.
func eachMessage(t *testing.T, property func(t *rapid.T, set Set, typ reflect.Type)) {
	for name, set := range sets {
		for kind, typ := range set {
			t.Run(name+"/"+kind, rapid.MakeCheck(func(t *rapid.T) { property(t, set, typ) }))
		}
	}
}

// A message comes out of the codec as it went in, and has one encoding.
func TestPropertyRoundTrip(t *testing.T) {
	eachMessage(t, func(t *rapid.T, set Set, typ reflect.Type) {
		m := generator{t: t}.message(typ)
		b, err := Encode(m)
		if err != nil {
			t.Fatalf("a valid message is refused: %+v: %v", m, err)
		}
		got, err := Decode(set, b)
		if err != nil {
			t.Fatalf("%x: %v", b, err)
		}
		if !same(m, got) {
			t.Fatalf("sent %+v, got %+v", m, got)
		}
		again, err := Encode(got)
		if err != nil || !bytes.Equal(b, again) {
			t.Fatalf("%x, then %x, %v", b, again, err)
		}
	})
}

// same compares messages but for what the wire does not tell: Type that was
// not set, nil against empty slices.
func same(sent, got Message) bool {
	a, b := reflect.ValueOf(sent), reflect.ValueOf(got)
	return sameValue(a, b)
}

func sameValue(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Struct:
		for i := range a.NumField() {
			if key, _ := fieldKey(a.Type().Field(i)); key == "type" && i == 0 {
				continue
			}
			if !sameValue(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Slice:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !sameValue(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Pointer:
		return a.IsNil() == b.IsNil() && (a.IsNil() || sameValue(a.Elem(), b.Elem()))
	default:
		return a.Interface() == b.Interface()
	}
}

// Encode refuses exactly what Decode refuses, with the same code, whatever the
// values: what it lets through is accepted and means the same.
func TestPropertyEncodeRefusesWhatDecodeRefuses(t *testing.T) {
	eachMessage(t, func(t *rapid.T, set Set, typ reflect.Type) {
		m := generator{t: t, wild: true}.message(typ)
		b, encodeErr := Encode(m)
		if encodeErr != nil {
			var e *Error
			if !errors.As(encodeErr, &e) || e.Code == CodeInternal || b != nil {
				t.Fatalf("%x, %v", b, encodeErr)
			}
			if _, err := Decode(set, encodeUnchecked(t, m)); err == nil {
				t.Fatalf("refused by Encode only: %+v: %v", m, encodeErr)
			}
			return
		}
		got, err := Decode(set, b)
		if err != nil || !same(m, got) {
			t.Fatalf("sent %+v as %x, got %+v, %v", m, b, got, err)
		}
	})
}

// encodeUnchecked encodes what Encode refuses.
func encodeUnchecked(t interface{ Fatal(...any) }, m Message) []byte {
	if r, ok := m.(Records); ok {
		return AppendRecords(nil, r)
	}
	var buf bytes.Buffer
	if err := marshal(&buf, reflect.ValueOf(m), m.Kind()); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Any error can be told, whatever its texts.
func TestPropertyErrorsTravel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		anyText := rapid.Custom(func(t *rapid.T) string {
			s := string(rapid.SliceOf(rapid.Byte()).Draw(t, "text"))
			return strings.Repeat(s, rapid.SampledFrom([]int{1, 1, 5000}).Draw(t, "times"))
		})
		e := &Error{
			Code:       Code(rapid.OneOf(rapid.Just(string(CodeReplayGap)), anyText).Draw(t, "code")),
			Message:    anyText.Draw(t, "message"),
			Advice:     anyText.Draw(t, "advice"),
			LostBefore: rapid.Uint64().Draw(t, "lostBefore"),
		}
		m := e.ToMessage(rapid.Uint64Range(0, MaxInteger).Draw(t, "id"))
		b, err := Encode(m)
		if err != nil {
			t.Fatalf("%+v: %v", m, err)
		}
		if _, err := Decode(BridgeReplies, b); err != nil {
			t.Fatalf("%+v: %v", m, err)
		}
	})
}
