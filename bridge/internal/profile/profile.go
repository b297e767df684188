package profile

import (
	"bytes"
	"encoding/json"
	"fmt"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Delimiter ends a record, in both framings: LF, and only LF.
const Delimiter = '\n'

// MaxRequest is the longest record that can be a pending request, in bytes. A
// longer one is an ordinary record.
const MaxRequest = 1 << 20

// Profile interprets the bytes of one kind of agent. It has no state.
type Profile struct {
	framing wire.Framing
}

// New returns the profile of a framing. Error: CodeInvalidConfig.
func New(f wire.Framing) (Profile, error) {
	if f != wire.FramingLines && f != wire.FramingPi {
		return Profile{}, &wire.Error{
			Code:    wire.CodeInvalidConfig,
			Message: fmt.Sprintf("there is no framing of the name %.40q", f),
			Advice:  "check that broker and bridge are of one release",
		}
	}
	return Profile{framing: f}, nil
}

// HasRequests reports whether records can be requests at all.
func (p Profile) HasRequests() bool { return p.framing == wire.FramingPi }

// requestMark is in every request's record: the agent writes its own type by
// JSON.stringify, which escapes no letter.
var requestMark = []byte(`"extension_ui_request"`)

// Request returns the id of the request that a record of standard output
// makes, or "" when the record waits for no answer. A request whose id is
// empty or longer than wire.MaxRequestID can't be named and waits for none.
func (p Profile) Request(record []byte) string {
	if p.framing != wire.FramingPi || len(record) > MaxRequest || !bytes.Contains(record, requestMark) {
		return ""
	}
	o, ok := parseObject(record)
	if !ok || o.kind != "extension_ui_request" || len(o.id) > wire.MaxRequestID {
		return ""
	}
	switch o.method {
	case "select", "confirm", "input", "editor":
		return o.id
	default:
		return ""
	}
}

// Input checks an input and returns the ids of the requests that it answers,
// in order. Error: CodeInvalidInput for what the agent can't take.
func (p Profile) Input(payload []byte) (answers []string, err error) {
	if p.framing != wire.FramingPi {
		return nil, nil
	}
	for n := 1; len(payload) > 0; n++ {
		end := bytes.IndexByte(payload, Delimiter)
		if end < 0 {
			return nil, refuse("line %d does not end with a line feed", n)
		}
		o, ok := parseObject(payload[:end])
		if !ok || !o.typed {
			// Pi exits on a bare null, and has no meaning for the rest.
			return nil, refuse("line %d is not a JSON object with a string \"type\"", n)
		}
		if o.kind == "extension_ui_response" && o.id != "" {
			answers = append(answers, o.id)
		}
		payload = payload[end+1:]
	}
	return answers, nil
}

func refuse(format string, args ...any) *wire.Error {
	return &wire.Error{
		Code:    wire.CodeInvalidInput,
		Message: fmt.Sprintf("the input can't be given to the agent: "+format, args...),
		Advice:  "send whole lines, each one JSON object with a string \"type\", each ended by a line feed",
	}
}

// object is what the bridge looks at in a line of the agent's protocol.
type object struct {
	kind, id, method string
	typed            bool
}

// parseObject reads the top-level keys of one JSON object. Like the agent's
// own parser it takes keys as they are written, case included, and of a
// repeated key the last.
func parseObject(line []byte) (o object, ok bool) {
	d := json.NewDecoder(bytes.NewReader(line))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return object{}, false
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return object{}, false
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return object{}, false
		}
		switch key {
		case "type":
			o.kind, o.typed = text(value)
		case "id":
			o.id, _ = text(value)
		case "method":
			o.method, _ = text(value)
		}
	}
	if _, err := d.Token(); err != nil {
		return object{}, false
	}
	if rest := bytes.TrimLeft(line[d.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return object{}, false
	}
	return o, true
}

func text(value json.RawMessage) (string, bool) {
	var s string
	if len(value) == 0 || value[0] != '"' || json.Unmarshal(value, &s) != nil {
		return "", false
	}
	return s, true
}
