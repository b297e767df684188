package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// bytesTimeout bounds one payload's way there and back.
const bytesTimeout = 2 * time.Minute

// echoProfiles are programs that give back what they get.
const echoProfiles = `
[profiles.stdout]
kind = "program"
framing = "lines"
command = ["/bin/cat"]

[profiles.stderr]
kind = "program"
framing = "lines"
command = ["/bin/sh", "-c", "exec cat >&2"]
`

// startSystem runs a broker for the length of a test, which plays the daemon
// itself, as root.
func startSystem(t *testing.T, o harness.Options) *harness.System {
	t.Helper()
	s := newSystem(t, o)
	if err := s.StartBroker(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// newSystem is startSystem without the start.
func newSystem(t *testing.T, o harness.Options) *harness.System {
	t.Helper()
	rootonly.Test(t)
	if o.Bin == "" {
		o.Bin = programs(t)
	}
	if len(o.PeerUIDs) == 0 {
		o.PeerUIDs = []uint32{0}
		if len(o.Workspaces) == 0 {
			o.Workspaces = []harness.Workspace{{Name: "project", UID: harness.DefaultPeerUID, GID: harness.DefaultPeerUID}}
		}
	}
	s, err := harness.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the broker's log ends with:\n%s", s.LogTail())
		}
		if err := s.Close(); err != nil {
			t.Errorf("close the system: %v", err)
		}
	})
	return s
}

// startSession creates a session and attaches to it as its writer.
func startSession(ctx context.Context, t *testing.T, s *harness.System, o client.CreateOptions) (*client.Broker, *client.Session, wire.SessionInfo) {
	t.Helper()
	b, err := client.DialBroker(ctx, s.BrokerSocket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	o.Workspace = "project"
	info, err := b.Create(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	session, err := client.DialSession(ctx, b.SessionSocket(info))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	if _, err := session.Attach(ctx, client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromOldest, Client: t.Name()}); err != nil {
		t.Fatal(err)
	}
	return b, session, info
}

// payloads are what an agent may print and a daemon may send (R49).
func payloads() map[string][]byte {
	random := make([]byte, 1<<20)
	rng := rand.NewChaCha8([32]byte{1})
	rng.Read(random)
	line := func(n int) []byte {
		b := bytes.Repeat([]byte("0123456789abcdef"), n/16)
		return append(b, '\n')
	}
	return map[string][]byte{
		"invalid UTF-8":       []byte("\xff\xfe\xc3\x28\xed\xa0\x80\n"),
		"NUL":                 []byte("a\x00b\x00\n\x00\n"),
		"CR and CRLF":         []byte("one\r\ntwo\rthree\r\n"),
		"line separator":      []byte("a\u2028b\u2029c\n"),
		"empty lines":         []byte("\n\n\na\n\n"),
		"no final line feed":  []byte("first\nlast"),
		"only one byte":       []byte("x"),
		"random":              random,
		"a line of 8 MiB":     line(8 << 20),
		"a line of 64 MiB":    line(64 << 20),
		"many lines":          bytes.Repeat([]byte("the quick brown fox\n"), 50_000),
		"fragment's edge":     line(wire.MaxFragment),
		"fragment's edge - 1": line(wire.MaxFragment)[1:],
	}
}

// R48 R49: every payload comes back byte for byte from a program in a sandbox,
// through both of its output streams, cut into records at line feeds only.
func TestBytesComeThroughUnchanged(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	s := startSmallSystem(t, harness.Options{Profiles: echoProfiles})
	for name, payload := range payloads() {
		for profile, stream := range map[string]wire.Stream{"stdout": wire.StreamStdout, "stderr": wire.StreamStderr} {
			if profile == "stderr" && len(payload) > 8<<20 {
				continue // the same code as for stdout, and a minute of the test's time
			}
			t.Run(name+" by "+profile, func(t *testing.T) { echo(t, s, profile, stream, payload) })
		}
	}
}

func echo(t *testing.T, s *harness.System, profile string, stream wire.Stream, payload []byte) {
	ctx, cancel := context.WithTimeout(t.Context(), bytesTimeout)
	defer cancel()
	b, session, info := startSession(ctx, t, s, client.CreateOptions{Profile: profile})
	sent := make(chan error, 1)
	go func() { sent <- send(ctx, session, payload) }()
	got, exit, err := collect(ctx, session, stream)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bytes.Join(got, nil), payload) {
		t.Errorf("the bytes differ: sent %d, got %d", len(payload), len(bytes.Join(got, nil)))
	}
	if want := bytes.SplitAfter(payload, []byte("\n")); len(got) != len(want) && !(len(got) == len(want)-1 && len(want[len(want)-1]) == 0) {
		t.Errorf("%d records, want one for each of %d lines", len(got), len(want))
	}
	if exit.Code != 0 || exit.InputDelivered != uint64(len(payload)) || exit.InputAccepted != uint64(len(payload)) {
		t.Errorf("exit %+v", exit)
	}
	if err := b.Delete(ctx, info.Session); err != nil {
		t.Fatal(err)
	}
}

// send gives the payload as inputs of odd sizes, then closes the input.
func send(ctx context.Context, session *client.Session, payload []byte) error {
	const most = 3<<20 + 1
	for i := 0; len(payload) > 0; i++ {
		n := min(most, len(payload))
		if _, err := session.Input(ctx, fmt.Sprintf("input-%d", i), payload[:n]); err != nil {
			return fmt.Errorf("input %d: %w", i, err)
		}
		payload = payload[n:]
	}
	return session.CloseInput(ctx)
}

// collect acknowledges and keeps the records of one stream until the exit.
func collect(ctx context.Context, session *client.Session, stream wire.Stream) ([][]byte, wire.Exit, error) {
	var got [][]byte
	last := uint64(0)
	for {
		r, err := session.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil, wire.Exit{}, errors.New("the records ended without an exit record")
		}
		if err != nil {
			return nil, wire.Exit{}, err
		}
		if r.Sequence != last+1 {
			return nil, wire.Exit{}, fmt.Errorf("sequence %d after %d", r.Sequence, last)
		}
		last = r.Sequence
		switch r.Stream {
		case wire.StreamExit:
			exit, err := wire.DecodeExit(r.Data)
			return got, exit, err
		case stream:
			got = append(got, bytes.Clone(r.Data))
		default:
			return nil, wire.Exit{}, fmt.Errorf("stream %d says %.100q", r.Stream, r.Data)
		}
		if last%1000 == 0 || len(r.Data) > 1<<20 {
			if err := session.Ack(ctx, last); err != nil {
				return nil, wire.Exit{}, err
			}
		}
	}
}
