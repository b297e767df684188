package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// seed adds the vectors of a set, valid and not.
func seed(f *testing.F, set string) {
	for _, v := range allVectors(f) {
		if v.Set == set {
			f.Add(v.bytes(f))
		}
	}
}

// checkDecode holds what is true for every payload: no panic; a refusal is a
// typed error and comes without a message; what is accepted has this one
// encoding, is valid and keeps nothing of the payload's buffer.
func checkDecode(t *testing.T, set Set, payload []byte) {
	original, payload := payload, bytes.Clone(payload)
	m, id, err := DecodeRequest(set, payload)
	if err != nil {
		var e *Error
		if !errors.As(err, &e) || !e.Code.Valid() || e.Message == "" || m != nil || id > MaxInteger {
			t.Fatalf("refused with %v, id %d, message %v", err, id, m)
		}
		if _, err := Encode(e.ToMessage(id)); err != nil {
			t.Fatalf("the refusal can't be told: %v", err)
		}
		return
	}
	if err := m.Validate(); err != nil {
		t.Fatalf("accepted, but not valid: %+v: %v", m, err)
	}
	if _, aliases := m.(Records); !aliases {
		clear(payload)
	}
	again, err := Encode(m)
	if err != nil || !bytes.Equal(again, original) {
		t.Fatalf("%x became %x, %v", original, again, err)
	}
}

func fuzzSet(f *testing.F, name string) {
	seed(f, name)
	f.Fuzz(func(t *testing.T, payload []byte) { checkDecode(t, sets[name], payload) })
}

func FuzzDecodeBrokerRequests(f *testing.F) { fuzzSet(f, "broker-request") }

func FuzzDecodeBrokerReplies(f *testing.F) { fuzzSet(f, "broker-reply") }

func FuzzDecodeBridgeRequests(f *testing.F) { fuzzSet(f, "bridge-request") }

func FuzzDecodeBridgeReplies(f *testing.F) { fuzzSet(f, "bridge-reply") }

// FuzzDecodeCustody tries both directions with each packet.
func FuzzDecodeCustody(f *testing.F) {
	seed(f, "to-bridge")
	seed(f, "from-bridge")
	f.Fuzz(func(t *testing.T, payload []byte) {
		checkDecode(t, ToBridge, payload)
		checkDecode(t, FromBridge, payload)
	})
}

func FuzzDecodeRecords(f *testing.F) {
	for _, v := range allVectors(f) {
		if b := v.bytes(f); v.Set == "bridge-reply" && len(b) > 0 && b[0]&majorMask == majorArray {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		m, err := DecodeRecords(payload)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Code != CodeInvalidMessage || m.Records != nil {
				t.Fatalf("refused with %v and %+v", err, m)
			}
			return
		}
		if err := m.Validate(); err != nil {
			t.Fatalf("accepted, but not valid: %v", err)
		}
		overhead := RecordsOverhead
		for _, r := range m.Records {
			overhead += RecordOverhead + len(r.Data)
		}
		if again := AppendRecords(nil, m); !bytes.Equal(again, payload) || len(again) > overhead {
			t.Fatalf("%x became %x, at most %d bytes", payload, again, overhead)
		}
	})
}

func FuzzDecodeExit(f *testing.F) {
	seed(f, "exit")
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := DecodeExit(data)
		if err != nil {
			if CodeOf(err) != CodeInvalidMessage || e != (Exit{}) {
				t.Fatalf("refused with %v and %+v", err, e)
			}
			return
		}
		if again, err := EncodeExit(e); err != nil || !bytes.Equal(again, data) {
			t.Fatalf("%x became %x, %v", data, again, err)
		}
	})
}

// FuzzReadFrame reads a stream to its end, in pieces of any size: it ends
// with io.EOF exactly when all its frames are whole and within the limit.
func FuzzReadFrame(f *testing.F) {
	for _, v := range allVectors(f) {
		if v.Set == "frame" {
			f.Add(v.bytes(f), v.Max)
		}
	}
	f.Add(bytes.Repeat([]byte{0, 0, 0, 1, 'x'}, 3), 1)
	f.Add([]byte{}, 1)
	f.Fuzz(func(t *testing.T, stream []byte, max int) {
		if max < 1 || max > MaxBridgeFrame {
			return
		}
		r := iotest.OneByteReader(bytes.NewReader(stream))
		var again, buf []byte
		for {
			payload, err := ReadFrame(r, max, buf)
			if err == io.EOF {
				break
			}
			if err != nil {
				if code := CodeOf(err); code != CodeFrameTooLarge && code != CodeFrameTruncated && code != CodeInvalidMessage || payload != nil {
					t.Fatalf("refused with %v", err)
				}
				if !bytes.HasPrefix(stream, again) {
					t.Fatalf("read %x of %x", again, stream)
				}
				return
			}
			if len(payload) == 0 || len(payload) > max {
				t.Fatalf("a frame of %d bytes, the limit is %d", len(payload), max)
			}
			again, buf = AppendFrame(again, payload), payload
		}
		if !bytes.Equal(again, stream) {
			t.Fatalf("read %x of %x", again, stream)
		}
	})
}
