package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"
)

var update = flag.Bool("update", false, "write the valid vectors again from the Go values")

// vector is one case of testdata/vectors; README.md there says what the keys
// mean.
type vector struct {
	Name       string `json:"name"`
	Set        string `json:"set"`
	Hex        string `json:"hex"`
	Diagnostic string `json:"diagnostic,omitempty"`
	Valid      bool   `json:"valid,omitempty"`
	Error      Code   `json:"error,omitempty"`
	ID         uint64 `json:"id,omitempty"`
	Max        int    `json:"max,omitempty"`
}

const vectorFolder = "testdata/vectors"

func readVectors(t testing.TB, name string) []vector {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(vectorFolder, name))
	if err != nil {
		t.Fatal(err)
	}
	var all []vector
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&all); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return all
}

func allVectors(t testing.TB) []vector {
	return append(readVectors(t, "valid.json"), readVectors(t, "invalid.json")...)
}

func (v vector) bytes(t testing.TB) []byte {
	t.Helper()
	b, err := hex.DecodeString(v.Hex)
	if err != nil {
		t.Fatalf("%s: %v", v.Name, err)
	}
	return b
}

// validVectors makes the valid cases from the Go values.
func validVectors(t *testing.T) []vector {
	var all []vector
	add := func(set, name string, b []byte) {
		diagnostic, err := cbor.Diagnose(b)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, vector{Name: name, Set: set, Hex: hex.EncodeToString(b), Diagnostic: diagnostic, Valid: true})
	}
	for _, s := range samples() {
		b, err := Encode(s.m)
		if err != nil {
			t.Fatalf("%s %s: %v", s.set, s.name, err)
		}
		add(s.set, s.name, b)
	}
	for _, e := range []Exit{sampleExit, sampleKilled} {
		b, err := EncodeExit(e)
		if err != nil {
			t.Fatal(err)
		}
		add("exit", "exit-"+string(e.Reason), b)
	}
	ping := []byte{0xa2, 0x62, 'i', 'd', 7, 0x64, 't', 'y', 'p', 'e', 0x64, 'p', 'i', 'n', 'g'}
	for _, max := range []int{MaxBridgeFrame, len(ping)} {
		all = append(all, vector{Name: fmt.Sprintf("ping-limit-%d", max), Set: "frame", Hex: hex.EncodeToString(AppendFrame(nil, ping)), Valid: true, Max: max})
	}
	return all
}

// R84: the shared vectors hold what the codec encodes, and every kind of
// message in both its forms.
func TestValidVectorsAreCurrent(t *testing.T) {
	want := validVectors(t)
	if *update {
		data, err := json.MarshalIndent(want, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(vectorFolder, "valid.json"), append(data, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := readVectors(t, "valid.json"); !reflect.DeepEqual(got, want) {
		t.Error("valid.json differs from the Go values; look at the difference after go test ./wire -run Vectors -update")
	}
	for set, types := range sets {
		for kind := range types {
			if !hasVector(want, set, kind) {
				t.Errorf("%s: no vector of %s", set, kind)
			}
		}
	}
}

func hasVector(all []vector, set, kind string) bool {
	for _, v := range all {
		if v.Set == set && v.Name == kind+"-minimal" {
			return true
		}
	}
	return false
}

// R84: every vector does what it says: valid ones come out of the codec byte
// for byte, the others are refused with their code and, for requests, the id
// that the answer carries.
func TestVectors(t *testing.T) {
	seen := make(map[string]bool)
	for _, v := range allVectors(t) {
		t.Run(v.Set+"/"+v.Name, func(t *testing.T) {
			if seen[v.Set+v.Name] {
				t.Fatal("the name comes twice")
			}
			seen[v.Set+v.Name] = true
			if v.Valid == (v.Error != "") {
				t.Fatal("a case is either valid or has an error")
			}
			b := v.bytes(t)
			again, id, err := v.decode(t, b)
			if v.Error != "" {
				if CodeOf(err) != v.Error || id != v.ID {
					t.Fatalf("got %v with id %d, want %s with id %d", err, id, v.Error, v.ID)
				}
			} else if err != nil || !bytes.Equal(again, b) {
				t.Fatalf("got %x, %v", again, err)
			}
			if v.Diagnostic != "" {
				if got, err := cbor.Diagnose(b); err != nil || got != v.Diagnostic {
					t.Fatalf("diagnostic notation is %s (%v)", got, err)
				}
			}
		})
	}
}

// decode decodes the bytes of the case and encodes the result again.
func (v vector) decode(t *testing.T, b []byte) (again []byte, id uint64, err error) {
	switch v.Set {
	case "exit":
		e, err := DecodeExit(b)
		if err != nil {
			return nil, 0, err
		}
		again, err = EncodeExit(e)
		return again, 0, err
	case "frame":
		payload, err := ReadFrame(bytes.NewReader(b), v.Max, nil)
		if err != nil {
			return nil, 0, err
		}
		return AppendFrame(nil, payload), 0, nil
	}
	set, ok := sets[v.Set]
	if !ok {
		t.Fatalf("there is no set %q", v.Set)
	}
	m, id, err := DecodeRequest(set, b)
	if err != nil {
		if m != nil {
			t.Errorf("a refused message was returned: %+v", m)
		}
		return nil, id, err
	}
	again, err = Encode(m)
	return again, id, err
}

// Every refusal says what is wrong and what to do.
func TestRefusalsAreSentences(t *testing.T) {
	for _, v := range readVectors(t, "invalid.json") {
		_, _, err := v.decode(t, v.bytes(t))
		e, ok := err.(*Error)
		if !ok {
			t.Fatalf("%s: %v is not an *Error", v.Name, err)
		}
		if len(e.Message) < 10 || e.Advice == "" || strings.Contains(e.Message, "cbor:") {
			t.Errorf("%s: %q, %q", v.Name, e.Message, e.Advice)
		}
	}
}
