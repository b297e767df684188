package wire

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"testing"
)

// counter is a stream in memory that counts the writes.
type counter struct {
	bytes.Buffer
	writes int
}

func (c *counter) Write(p []byte) (int, error) {
	c.writes++
	return c.Buffer.Write(p)
}

func TestConnRoundTrip(t *testing.T) {
	var stream counter
	c := NewConn(&stream, MaxBridgeFrame)
	sent := []Message{
		Input{Type: "input", ID: 1, InputID: "a", Data: bytes.Repeat([]byte("x"), MaxFragment)},
		Ping{Type: "ping", ID: 2},
		Input{Type: "input", ID: 3, InputID: "b", Data: []byte("y")},
	}
	for _, m := range sent {
		if err := c.WriteMessage(m); err != nil {
			t.Fatal(err)
		}
	}
	if stream.writes != len(sent) {
		t.Errorf("%d writes for %d messages", stream.writes, len(sent))
	}
	for i, want := range sent {
		got, id, err := c.ReadRequest(BridgeRequests)
		if err != nil || id != uint64(i+1) || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %.80v with id %d, %v", got, id, err)
		}
	}
	if _, err := c.ReadMessage(BridgeRequests); err != io.EOF {
		t.Errorf("the end is %v", err)
	}
}

// A refused message leaves the stream at the next one.
func TestConnGoesOnAfterARefusal(t *testing.T) {
	var stream counter
	for _, payload := range [][]byte{[]byte("\xa2\x62id\x07\x64type\x64pang"), []byte("\xa2\x62id\x08\x64type\x64ping")} {
		stream.Write(AppendFrame(nil, payload))
	}
	c := NewConn(&stream, MaxBridgeFrame)
	if m, id, err := c.ReadRequest(BridgeRequests); CodeOf(err) != CodeUnknownMessage || id != 7 || m != nil || Fatal(err) {
		t.Errorf("got %v, %d, %v", m, id, err)
	}
	if m, id, err := c.ReadRequest(BridgeRequests); err != nil || id != 8 {
		t.Errorf("got %v, %d, %v", m, id, err)
	}
}

// R71: nothing is written of a message that can't be sent whole.
func TestWritesAreWholeOrNothing(t *testing.T) {
	ping, err := Encode(Ping{ID: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		m    Message
		max  int
		code Code
	}{
		{Ping{ID: 1}, len(ping), ""},
		{Ping{ID: 1}, len(ping) - 1, CodeFrameTooLarge},
		{Ping{}, len(ping), CodeInvalidMessage},
		{SignalSession{ID: 1, Session: sampleSession, Signal: "STOP"}, MaxBrokerFrame, CodeInvalidSignal},
	} {
		var stream counter
		err := WriteMessage(&stream, test.m, test.max)
		if CodeOf(err) != test.code || (err == nil) != (stream.Len() > 0) {
			t.Errorf("%+v: %v, %d bytes written", test.m, err, stream.Len())
		}
		c := NewConn(&stream, test.max)
		stream.Reset()
		if again := c.WriteMessage(test.m); CodeOf(again) != test.code || (again == nil) != (stream.Len() > 0) {
			t.Errorf("%+v: %v, %d bytes written", test.m, again, stream.Len())
		}
	}
}

func TestConnLimitWrites(t *testing.T) {
	var stream counter
	c := NewConn(&stream, MaxBridgeFrame)
	c.LimitWrites(MaxInteger)
	if c.WriteLimit() != MaxBridgeFrame {
		t.Errorf("a peer raised the limit to %d", c.WriteLimit())
	}
	c.LimitWrites(MinPeerFrame)
	large := Input{ID: 1, InputID: "a", Data: make([]byte, MinPeerFrame)}
	if err := c.WriteMessage(large); CodeOf(err) != CodeFrameTooLarge || stream.Len() != 0 {
		t.Errorf("%v, %d bytes written", err, stream.Len())
	}
}

// A connection ends after what breaks the framing or the encoding, and after
// an error that is not the protocol's; not after what only means nothing.
func TestFatal(t *testing.T) {
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{io.EOF, true},
		{errors.New("reset"), true},
		{&Error{Code: CodeInvalidMessage}, true},
		{&Error{Code: CodeFrameTooLarge}, true},
		{&Error{Code: CodeFrameTruncated}, true},
		{&Error{Code: CodeUnknownMessage}, false},
		{&Error{Code: CodeInvalidArgument}, false},
		{&Error{Code: CodeInvalidSignal}, false},
	} {
		if got := Fatal(test.err); got != test.want {
			t.Errorf("%v: %v", test.err, got)
		}
	}
}

// What was read with a message, and belongs to the next one, is told.
func TestConnBuffered(t *testing.T) {
	var stream counter
	c := NewConn(&stream, MaxBrokerFrame)
	if err := c.WriteMessage(Describe{ID: 1}); err != nil {
		t.Fatal(err)
	}
	stream.Write([]byte{0, 0})
	if n := c.Buffered(); n != 0 {
		t.Errorf("%d bytes before anything was read", n)
	}
	if _, err := c.ReadMessage(BrokerRequests); err != nil {
		t.Fatal(err)
	}
	if n := c.Buffered(); n != 2 {
		t.Errorf("%d bytes of the next message, want 2", n)
	}
}
