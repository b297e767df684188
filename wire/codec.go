package wire

import (
	"bytes"
	"fmt"
	"reflect"

	"github.com/fxamacker/cbor/v2"
)

// Decoding limits beside the frame size. They are generous for every message
// that exists and small enough that no frame makes the decoder allocate more
// than a few times its own size.
const (
	maxNesting  = 8
	maxElements = 4096
	maxPairs    = 64
)

var (
	encMode = mustMode(func() (cbor.EncMode, error) {
		o := cbor.CoreDetEncOptions()
		o.TagsMd = cbor.TagsForbidden
		return o.EncMode()
	})
	decMode = mustMode(func() (cbor.DecMode, error) { return decOptions(cbor.ExtraDecErrorUnknownField).DecMode() })
	// peekMode reads only the type of a message whose other keys are unknown.
	peekMode = mustMode(func() (cbor.DecMode, error) { return decOptions(cbor.ExtraDecErrorNone).DecMode() })
)

func decOptions(extra cbor.ExtraDecErrorCond) cbor.DecOptions {
	return cbor.DecOptions{
		DupMapKey:          cbor.DupMapKeyEnforcedAPF,
		IndefLength:        cbor.IndefLengthForbidden,
		TagsMd:             cbor.TagsForbidden,
		ExtraReturnErrors:  extra,
		MaxNestedLevels:    maxNesting,
		MaxArrayElements:   maxElements,
		MaxMapPairs:        maxPairs,
		UTF8:               cbor.UTF8RejectInvalid,
		FieldNameMatching:  cbor.FieldNameMatchingCaseSensitive,
		IntDec:             cbor.IntDecConvertNone,
		NaN:                cbor.NaNDecodeForbidden,
		Inf:                cbor.InfDecodeForbidden,
		ByteStringToString: cbor.ByteStringToStringForbidden,
	}
}

func mustMode[T any](make func() (T, error)) T {
	m, err := make()
	if err != nil {
		panic(err)
	}
	return m
}

// Set is a set of message types that one side of one protocol accepts.
type Set map[string]reflect.Type

// NewSet makes a set of the types of the given messages.
func NewSet(messages ...Message) Set {
	s := make(Set, len(messages))
	for _, m := range messages {
		s[m.Kind()] = reflect.TypeOf(m)
	}
	return s
}

// The sets of the protocols. Hello and ErrorMessage belong to each.
var (
	BrokerRequests = NewSet(Hello{}, Create{}, InspectSession{}, ListSessions{}, SignalSession{}, TerminateSession{}, DeleteSession{}, Describe{})
	BrokerReplies  = NewSet(Hello{}, ErrorMessage{}, Done{}, Created{}, SessionReply{}, SessionList{}, Deployment{})
	BridgeRequests = NewSet(Hello{}, Attach{}, Ack{}, Input{}, CloseInput{}, Signal{}, Terminate{}, Release{}, Inspect{}, Ping{})
	BridgeReplies  = NewSet(Hello{}, ErrorMessage{}, Done{}, Attached{}, Acked{}, Accepted{}, Status{}, Pong{}, Fenced{}, Records{})
	ToBridge       = NewSet(Configure{}, ErrorMessage{}, Done{}, BridgeExitReason{})
	FromBridge     = NewSet(Ready{}, ErrorMessage{}, BridgeSignal{}, BridgeInputClosed{}, BridgeExit{})
)

// Encode returns the message as one CBOR item in core deterministic encoding.
// A message may be given as a value or as a pointer.
func Encode(m Message) ([]byte, error) {
	if r, ok := m.(Records); ok {
		return AppendRecords(nil, r), nil
	}
	v := reflect.New(reflect.Indirect(reflect.ValueOf(m)).Type()).Elem()
	v.Set(reflect.Indirect(reflect.ValueOf(m)))
	v.FieldByName("Type").SetString(m.Kind())
	b, err := encMode.Marshal(v.Interface())
	if err != nil {
		return nil, &Error{Code: CodeInternal, Message: "the message can't be encoded", Err: err}
	}
	return b, nil
}

// Decode reads exactly one message of the set. It refuses, as
// CodeInvalidMessage, anything but core deterministic encoding: duplicate,
// unknown or unsorted keys, indefinite lengths, tags, integers and lengths
// that are not the shortest, invalid UTF-8, optional keys that hold their
// default, and trailing bytes. A type outside the set is CodeUnknownMessage.
//
// The result is a value of one of the set's types. It does not alias payload.
func Decode(set Set, payload []byte) (Message, error) {
	if len(payload) > 0 && payload[0]>>5 == 4 {
		if _, ok := set[Records{}.Kind()]; ok {
			return DecodeRecords(payload)
		}
	}
	var head struct {
		Type string `cbor:"type"`
	}
	if err := peekMode.Unmarshal(payload, &head); err != nil {
		return nil, invalid(err)
	}
	t, ok := set[head.Type]
	if !ok || head.Type == (Records{}).Kind() {
		return nil, &Error{
			Code:    CodeUnknownMessage,
			Message: fmt.Sprintf("there is no message of type %.64q here", head.Type),
			Advice:  "check the protocol version and which socket this is",
		}
	}
	p := reflect.New(t)
	if err := decMode.Unmarshal(payload, p.Interface()); err != nil {
		return nil, invalid(err)
	}
	m := p.Elem().Interface().(Message)
	again, err := Encode(m)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(again, payload) {
		return nil, invalid(fmt.Errorf("not in core deterministic encoding, or a required key is missing"))
	}
	return m, nil
}

func invalid(cause error) *Error {
	return &Error{Code: CodeInvalidMessage, Message: "the message does not follow the protocol", Advice: "encode as the grammar says, in core deterministic encoding", Err: cause}
}
