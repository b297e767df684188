package profile

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

func pi(t testing.TB) Profile {
	p, err := New(wire.FramingPi)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// R45: only the four methods that want an answer make a pending request.
func TestRequest(t *testing.T) {
	p := pi(t)
	for record, want := range map[string]string{
		`{"type":"extension_ui_request","id":"1","method":"select"}` + "\n":                                         "1",
		`{"method":"confirm","id":"2","type":"extension_ui_request"}` + "\r\n":                                      "2",
		`{"type":"extension_ui_request","id":"3","method":"input"}`:                                                 "3",
		`{"type":"extension_ui_request","id":"a\"b","method":"editor"}` + "\n":                                      `a"b`,
		`{"type":"extension_ui_request","id":"5","method":"notify"}` + "\n":                                         "",
		`{"type":"extension_ui_request","id":"5","method":"setStatus"}` + "\n":                                      "",
		`{"type":"extension_ui_request","id":"5","method":"setWidget"}` + "\n":                                      "",
		`{"type":"extension_ui_request","id":"5","method":"setTitle"}` + "\n":                                       "",
		`{"type":"extension_ui_request","id":"5","method":"set_editor_text"}` + "\n":                                "",
		`{"type":"extension_ui_request","id":5,"method":"select"}` + "\n":                                           "",
		`{"type":"extension_ui_request","method":"select"}` + "\n":                                                  "",
		`{"Type":"extension_ui_request","id":"1","method":"select"}` + "\n":                                         "",
		`{"a":{"type":"extension_ui_request","id":"1","method":"select"}}` + "\n":                                   "",
		`[{"type":"extension_ui_request","id":"1","method":"select"}]` + "\n":                                       "",
		`{"type":"extension_ui_request","id":"1","method":"select"} x` + "\n":                                       "",
		`{"type":"extension_ui_request","id":"1","method":"select"`:                                                 "",
		`{"type":"x","type":"extension_ui_request","id":"1","id":"2","method":"select"}`:                            "2",
		`{"type":"extension_ui_request","id":"` + strings.Repeat("i", wire.MaxRequestID) + `","method":"select"}`:   strings.Repeat("i", wire.MaxRequestID),
		`{"type":"extension_ui_request","id":"` + strings.Repeat("i", wire.MaxRequestID+1) + `","method":"select"}`: "",
	} {
		if got := p.Request([]byte(record)); got != want {
			t.Errorf("%s is the request %q, want %q", record, got, want)
		}
	}
	lines, err := New(wire.FramingLines)
	if err != nil {
		t.Fatal(err)
	}
	if got := lines.Request([]byte(`{"type":"extension_ui_request","id":"1","method":"select"}`)); got != "" || lines.HasRequests() {
		t.Errorf("opaque lines make the request %q", got)
	}
}

func TestInputAnswers(t *testing.T) {
	got, err := pi(t).Input([]byte(`{"type":"extension_ui_response","id":"a"}` + "\n" + `{"type":"abort","id":"b"}` + "\n" + `{"type":"extension_ui_response","id":"c","cancelled":true}` + "\n"))
	if err != nil || !reflect.DeepEqual(got, []string{"a", "c"}) {
		t.Fatalf("answers %q, %v", got, err)
	}
	if _, err := New("other"); wire.CodeOf(err) != wire.CodeInvalidConfig {
		t.Fatalf("an unknown framing: %v", err)
	}
}

// FuzzInput: what is accepted consists of whole lines that a JSON parser takes
// as objects; nothing else gets through.
func FuzzInput(f *testing.F) {
	for _, seed := range []string{
		`{"type":"x"}` + "\n", "null\n", `{"type":"extension_ui_response","id":"a"}` + "\n", "{\"type\":\"\xff\"}\n", `{"type":"x"}{}` + "\n", "\n\n",
	} {
		f.Add([]byte(seed))
	}
	p := pi(f)
	f.Fuzz(func(t *testing.T, payload []byte) {
		if _, err := p.Input(payload); err != nil {
			if wire.CodeOf(err) != wire.CodeInvalidInput {
				t.Fatal(err)
			}
			return
		}
		for _, line := range strings.SplitAfter(string(payload), "\n") {
			if line == "" {
				continue
			}
			var o map[string]any
			if !strings.HasSuffix(line, "\n") || json.Unmarshal([]byte(line), &o) != nil || o == nil {
				t.Fatalf("%q was accepted", line)
			}
			if _, ok := o["type"].(string); !ok {
				t.Fatalf("%q was accepted without a type", line)
			}
		}
	})
}

// FuzzRequest: no output of a hostile agent does harm, and an id is only ever
// taken from a JSON object of the right type.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"type":"extension_ui_request","id":"1","method":"select"}` + "\n"))
	f.Add([]byte(`{"type":"extension_ui_request","id":"1","method":["select"]}`))
	f.Add([]byte(`"extension_ui_request"`))
	p := pi(f)
	f.Fuzz(func(t *testing.T, record []byte) {
		id := p.Request(record)
		if id == "" {
			return
		}
		var o map[string]any
		if json.Unmarshal(record, &o) != nil || o["type"] != "extension_ui_request" || o["id"] != id || len(id) > wire.MaxRequestID {
			t.Fatalf("%q is the request %q", record, id)
		}
	})
}
