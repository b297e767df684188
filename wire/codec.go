package wire

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/fxamacker/cbor/v2"
)

var (
	encMode = mustMode(func() (cbor.UserBufferEncMode, error) {
		o := cbor.CoreDetEncOptions()
		o.TagsMd = cbor.TagsForbidden
		o.NilContainers = cbor.NilContainerAsEmpty
		return o.UserBufferEncMode()
	})
	decMode = mustMode(func() (cbor.DecMode, error) {
		return cbor.DecOptions{
			DupMapKey:          cbor.DupMapKeyEnforcedAPF,
			IndefLength:        cbor.IndefLengthForbidden,
			TagsMd:             cbor.TagsForbidden,
			ExtraReturnErrors:  cbor.ExtraDecErrorUnknownField,
			MaxNestedLevels:    maxNesting,
			MaxArrayElements:   maxElements,
			MaxMapPairs:        maxPairs,
			UTF8:               cbor.UTF8RejectInvalid,
			FieldNameMatching:  cbor.FieldNameMatchingCaseSensitive,
			IntDec:             cbor.IntDecConvertNone,
			NaN:                cbor.NaNDecodeForbidden,
			Inf:                cbor.InfDecodeForbidden,
			ByteStringToString: cbor.ByteStringToStringForbidden,
		}.DecMode()
	})
)

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

// The sets of the protocols. Hello belongs to both directions of each that
// clients speak.
var (
	BrokerRequests = NewSet(Hello{}, Create{}, InspectSession{}, ListSessions{}, SignalSession{}, TerminateSession{}, DeleteSession{}, Reload{}, Collect{}, Describe{})
	BrokerReplies  = NewSet(Hello{}, ErrorMessage{}, Done{}, Created{}, SessionReply{}, SessionList{}, Collected{}, Deployment{})
	BridgeRequests = NewSet(Hello{}, Attach{}, Ack{}, Input{}, CloseInput{}, Signal{}, Terminate{}, Release{}, Inspect{}, Ping{})
	BridgeReplies  = NewSet(Hello{}, ErrorMessage{}, Done{}, Attached{}, Acked{}, Accepted{}, Status{}, Pong{}, Fenced{}, Records{})
	ToBridge       = NewSet(Configure{}, Resume{}, ErrorMessage{}, Done{}, BridgeExitReason{})
	FromBridge     = NewSet(Ready{}, Resumed{}, ErrorMessage{}, BridgeSignal{}, BridgeInputClosed{}, BridgeSeat{}, BridgeExit{}, BridgeAlive{})
)

// recordsKind names the one message that is not a map.
const recordsKind = "records"

// Encode returns the message as one CBOR item in core deterministic encoding.
// A message may be given as a value or as a pointer; its Type need not be set.
// A nil slice is encoded as an empty one.
//
// A message that Decode would refuse is not encoded: the error is the one that
// Decode would give.
func Encode(m Message) ([]byte, error) { return AppendMessage(nil, m) }

// AppendMessage appends the encoded message to dst, like Encode. On error it
// returns dst as it was.
func AppendMessage(dst []byte, m Message) ([]byte, error) {
	v := reflect.Indirect(reflect.ValueOf(m))
	if !v.IsValid() {
		return dst, &Error{Code: CodeInternal, Message: "there is no message to encode"}
	}
	if err := m.Validate(); err != nil {
		return dst, err
	}
	if r, ok := v.Interface().(Records); ok {
		return AppendRecords(dst, r), nil
	}
	buf := bytes.NewBuffer(dst)
	if err := marshal(buf, v, m.Kind()); err != nil {
		return dst, err
	}
	// Validate leaves what is the same for all messages, such as the size of
	// integers, to the scan.
	out := buf.Bytes()
	if _, err := scanMessage(out[len(dst):], nil); err != nil {
		return dst, err
	}
	return out, nil
}

// marshal writes the struct v with its type set.
func marshal(buf *bytes.Buffer, v reflect.Value, kind string) error {
	if v.Kind() != reflect.Struct || v.NumField() == 0 || v.Type().Field(0).Name != "Type" {
		return &Error{Code: CodeInternal, Message: fmt.Sprintf("%s is not a message", v.Type())}
	}
	if v.Field(0).String() != kind {
		typed := reflect.New(v.Type()).Elem()
		typed.Set(v)
		typed.Field(0).SetString(kind)
		v = typed
	}
	if err := encMode.MarshalToBuffer(v.Interface(), buf); err != nil {
		return &Error{Code: CodeInternal, Message: "the message can't be encoded", Err: err}
	}
	return nil
}

// Decode reads exactly one message of the set.
//
// It refuses, as CodeInvalidMessage, anything but core deterministic encoding
// (RFC 8949, section 4.2.1) of the grammar: duplicate, unknown, missing or
// unsorted keys, optional keys that hold their default, indefinite lengths,
// tags, floats, null, negative integers and those above MaxInteger, integers
// and lengths that are not the shortest, invalid UTF-8, items over their
// limits, and trailing bytes. A type outside the set is CodeUnknownMessage. A
// message that is well-formed but means nothing gets the code of its Validate.
//
// The result is a value of one of the set's types. It does not alias payload,
// except for the data of Records.
func Decode(set Set, payload []byte) (Message, error) {
	m, _, err := DecodeRequest(set, payload)
	return m, err
}

// DecodeRequest is Decode for the side that answers: id is that of the
// request, also when the message is refused, as long as it could be read; 0
// when it could not, or when this kind of message has none.
func DecodeRequest(set Set, payload []byte) (m Message, id uint64, err error) {
	if _, ok := set[recordsKind]; ok && len(payload) > 0 && payload[0]&majorMask == majorArray {
		r, err := DecodeRecords(payload)
		if err != nil {
			return nil, 0, err
		}
		return r, 0, nil
	}
	h, scanErr := scanMessage(payload, nil)
	if scanErr != nil {
		return nil, h.id, scanErr
	}
	t, ok := set[h.kind]
	if !ok || h.kind == recordsKind {
		return nil, h.id, &Error{
			Code:    CodeUnknownMessage,
			Message: fmt.Sprintf("there is no message of type %.64q here", h.kind),
			Advice:  "check the protocol version and which socket this is",
		}
	}
	m, err = decodeAs(t, payload)
	return m, h.id, err
}

// decodeAs decodes a scanned payload into the type t. Encoding the result
// again has to give the same bytes, which is what finds missing keys and
// optional ones with a default.
func decodeAs(t reflect.Type, payload []byte) (Message, error) {
	p := reflect.New(t)
	if err := decMode.Unmarshal(payload, p.Interface()); err != nil {
		return nil, explain(t, payload, err)
	}
	m := p.Elem().Interface().(Message)
	buf := buffers.Get().(*bytes.Buffer)
	defer buffers.Put(buf)
	buf.Reset()
	if err := marshal(buf, p.Elem(), m.Kind()); err != nil {
		return nil, err
	}
	if !bytes.Equal(buf.Bytes(), payload) {
		return nil, explain(t, payload, nil)
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	return m, nil
}

// buffers holds what decodeAs encodes into.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// explain says why a payload that passed the scan is not a t.
func explain(t reflect.Type, payload []byte, cause error) *Error {
	var mismatch *cbor.UnmarshalTypeError
	if errors.As(cause, &mismatch) && mismatch.StructFieldName != "" {
		key := mismatch.StructFieldName[strings.LastIndexByte(mismatch.StructFieldName, '.')+1:]
		return invalid(fmt.Sprintf("the value of %q is of the wrong type", key), cause)
	}
	present := make(map[string]bool)
	scanMap(payload, func(key, _ []byte) { present[string(key)] = true })
	for i := range t.NumField() {
		key, optional := fieldKey(t.Field(i))
		if !present[key] && !optional {
			return invalid(fmt.Sprintf("the key %q is missing", key), cause)
		}
		delete(present, key)
	}
	for key := range present {
		return invalid(fmt.Sprintf("the key %q does not belong here", key), cause)
	}
	if cause != nil {
		return invalid("a nested map does not follow the grammar", cause)
	}
	return invalid("an optional key holds its default, a key of a nested map is missing, or a value is of the wrong type", nil)
}

// fieldKey returns the map key of a struct field, and whether it is left out
// when it holds its default.
func fieldKey(f reflect.StructField) (key string, optional bool) {
	key, options, _ := strings.Cut(f.Tag.Get("cbor"), ",")
	return key, options == "omitempty"
}

func invalid(what string, cause error) *Error {
	return &Error{Code: CodeInvalidMessage, Message: "the message does not follow the protocol: " + what, Advice: "encode as the grammar says, in core deterministic encoding", Err: cause}
}
