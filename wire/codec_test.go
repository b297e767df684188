package wire

import (
	"reflect"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	m := Attach{Type: "attach", ID: 7, Mode: ModeWriter, From: FromCursor, Cursor: &Cursor{Epoch: "0011223344556677", Sequence: 9}}
	b, err := Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(BridgeRequests, b)
	if err != nil || !reflect.DeepEqual(got, m) {
		t.Fatalf("got %+v, %v", got, err)
	}
	r := Records{Records: []Record{{Sequence: 1 << 40, Stream: StreamStdout, Flags: FlagMore, Offset: 300, Data: []byte{0, 255}}}}
	b, _ = Encode(r)
	got, err = Decode(BridgeReplies, b)
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Fatalf("got %+v, %v", got, err)
	}
}
