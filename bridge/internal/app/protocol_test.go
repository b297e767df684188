package app_test

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/rig"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

var hello = wire.Hello{Protocol: wire.ProtocolBridge, Versions: []uint64{wire.Version}, MaxFrame: wire.MaxBridgeFrame}

// readError reads until the connection's error message.
func readError(t *testing.T, c *rig.Client) *wire.Error {
	t.Helper()
	for {
		m, err := c.TryRead()
		if err != nil {
			t.Fatalf("no error message: %v", err)
		}
		if e, ok := m.(wire.ErrorMessage); ok {
			return e.Err()
		}
	}
}

// R83: what breaks the protocol is told with its code, and the connection
// ends; the session and other connections are not touched.
func TestBrokenProtocol(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	witness := r.Writer()
	frame := func(b ...byte) []byte { return wire.AppendFrame(nil, b) }
	message := func(m wire.Message) []byte {
		b, err := wire.AppendMessageFrame(nil, m, wire.MaxBridgeFrame)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	old := hello
	old.Versions = []uint64{2, 3}
	broker := hello
	broker.Protocol = wire.ProtocolBroker
	for _, test := range []struct {
		name  string
		hello bool
		send  []byte
		code  wire.Code
	}{
		{"no hello", false, message(wire.Ping{ID: 1}), wire.CodeHelloRequired},
		{"version", false, message(old), wire.CodeUnsupportedVersion},
		{"protocol", false, message(broker), wire.CodeInvalidMessage},
		{"second hello", true, message(hello), wire.CodeInvalidMessage},
		{"garbage", true, frame(0xff, 0xff), wire.CodeInvalidMessage},
		{"empty frame", true, frame(), wire.CodeInvalidMessage},
		{"oversized frame", true, binary.BigEndian.AppendUint32(nil, wire.MaxBridgeFrame+1), wire.CodeFrameTooLarge},
		{"nesting", true, frame([]byte(strings.Repeat("\x81", 1000) + "\x00")...), wire.CodeInvalidMessage},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := r.Dial()
			if test.hello {
				c = r.Connect()
			}
			if _, err := c.NC.Write(test.send); err != nil {
				t.Fatal(err)
			}
			wantCode(t, readError(t, c), test.code)
			if _, err := c.TryRead(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("the connection goes on: %v", err)
			}
		})
	}
	t.Run("truncated frame", func(t *testing.T) {
		c := r.Connect()
		if _, err := c.NC.Write([]byte{0, 0, 0, 9, 1}); err != nil {
			t.Fatal(err)
		}
		if err := c.NC.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		wantCode(t, readError(t, c), wire.CodeFrameTruncated)
	})
	t.Run("fragments out of order", func(t *testing.T) {
		c := r.Attach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromLive, Takeover: true})
		c.Send(wire.Input{ID: 7, Lease: c.Attached.Lease, InputID: "x", Data: []byte("1"), More: true})
		c.Send(wire.Input{ID: 8, Lease: c.Attached.Lease, InputID: "x", Offset: 2, Data: []byte("2")})
		if m, ok := c.Read().(wire.ErrorMessage); !ok || m.ID != 8 || m.Code != wire.CodeInvalidMessage {
			t.Fatalf("answered %+v", m)
		}
		if _, err := c.TryRead(); !errors.Is(err, io.EOF) {
			t.Fatalf("the connection goes on: %v", err)
		}
	})
	t.Run("unknown message", func(t *testing.T) {
		c := r.Connect()
		// {"id": 5, "type": "nonsense"}
		if _, err := c.NC.Write(frame([]byte("\xa2\x62id\x05\x64type\x68nonsense")...)); err != nil {
			t.Fatal(err)
		}
		wantCode(t, readError(t, c), wire.CodeUnknownMessage)
		c.Inspect()
	})
	t.Run("not attached", func(t *testing.T) {
		c := r.Connect()
		for name, request := range everyRight("", r.Epoch) {
			e := ask(c, request)
			if e == nil {
				t.Fatalf("%s was done", name)
			}
			wantCode(t, e, wire.CodeNotAttached)
		}
	})
	if st := witness.Inspect(); st.InputAccepted != 0 {
		t.Fatalf("status %+v", st)
	}
}

// R11: who connects is decided by the kernel's word at accept.
func TestOtherUsersAreRefused(t *testing.T) {
	r := rig.New(t, rig.Options{PeerUIDs: []uint64{uint64(os.Getuid()) + 1}})
	r.Start()
	wantCode(t, readError(t, r.Dial()), wire.CodePermissionDenied)
}

// A full house is told so, and a seat is free again when someone leaves.
func TestConnectionLimit(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	var all []*rig.Client
	for range 64 {
		all = append(all, r.Connect())
	}
	if e := readError(t, r.Dial()); e.Code != "too_many_connections" {
		t.Fatal(e)
	}
	all[0].Close()
	eventually(t, "a seat", func() bool {
		c := r.Connection()
		if c == nil {
			return false
		}
		defer c.Close()
		return true
	})
}

// R18: descriptors that a client sends along are dropped by the kernel, not
// collected by the bridge.
func TestClientDescriptorsAreDropped(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	c := r.Connect()
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	ping, err := wire.AppendMessageFrame(nil, wire.Ping{ID: 1}, wire.MaxBridgeFrame)
	if err != nil {
		t.Fatal(err)
	}
	c.Inspect()
	before := count()
	for range 20 {
		if _, _, err := c.NC.WriteMsgUnix(ping, unix.UnixRights(0, 1, 2), nil); err != nil {
			t.Fatal(err)
		}
		if _, ok := c.Read().(wire.Pong); !ok {
			t.Fatal("no pong")
		}
	}
	if after := count(); after != before {
		t.Fatalf("%d descriptors were open before and %d after", before, after)
	}
}

// A client with the smallest frames gets the same bytes.
func TestSmallFrames(t *testing.T) {
	r := rig.New(t, rig.Options{Framing: wire.FramingPi})
	r.Start()
	c := r.Dial()
	small := hello
	small.MaxFrame = wire.MinPeerFrame
	c.Send(small)
	c.Conn = wire.NewConn(c.NC, wire.MinPeerFrame)
	c.Read()
	big := `{"type":"extension_ui_request","id":"q","method":"editor","prefill":"` + strings.Repeat("p", 300<<10) + `"}` + "\n"
	if _, err := r.AgentStdout.WriteString(big); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the request", func() bool { return len(c.Inspect().Pending) == 1 })
	if e := c.TryAttach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromOldest}); e != nil {
		t.Fatal(e)
	}
	c.Expect(wire.StreamStdout, []byte(big))
	if len(c.Records) != 1 || !c.Records[0].Pending || string(c.Records[0].Data) != big {
		t.Fatalf("%d pending records", len(c.Records))
	}
}

// R32: a session whose files are damaged, of another epoch or of other limits
// is refused with a reason, not opened halfway.
func TestUnusableSessions(t *testing.T) {
	fail := func(t *testing.T, r *rig.Rig, code wire.Code) {
		t.Helper()
		b := r.Launch()
		e := <-b.Failure
		wantCode(t, e.Err(), code)
		if err := b.Stop(); err == nil {
			t.Fatal("the bridge ended without an error")
		}
	}
	t.Run("limits", func(t *testing.T) {
		fail(t, rig.New(t, rig.Options{SpoolLimit: 1 << 20}), wire.CodeInvalidConfig)
	})
	t.Run("missing descriptor", func(t *testing.T) {
		r := rig.New(t, rig.Options{})
		r.DropStdin()
		fail(t, r, wire.CodeInvalidConfig)
	})
	for _, name := range []string{"index", "control.log"} {
		t.Run(name, func(t *testing.T) {
			r := rig.New(t, rig.Options{})
			if err := os.WriteFile(r.Dir+"/"+name, []byte(strings.Repeat("garbage ", 1024)), 0o600); err != nil {
				t.Fatal(err)
			}
			fail(t, r, wire.CodeInternal)
		})
	}
	t.Run("epoch", func(t *testing.T) {
		r := rig.New(t, rig.Options{})
		if err := r.Start().Stop(); err != nil {
			t.Fatal(err)
		}
		r.Epoch = "ffffffffffffffff"
		fail(t, r, wire.CodeInternal)
	})
}
