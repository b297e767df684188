package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// dropProfile prints a line of 100 bytes for each number up to the one that it
// reads, whoever listens, and keeps a part.
const dropProfile = `
[profiles.drop]
kind = "program"
framing = "lines"
command = ["/bin/bash", "-c", "read n; seq -f %099.0f $n; echo printed >&2; read rest"]
spool = "17MiB"
max_record = "1MiB"
overflow = "drop-oldest"
`

// R47: a session that may drop its oldest records, and must, says which are
// gone, to each reader in its way; the others are there, byte for byte.
func TestDropOldestIsReported(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	s := startSmallSystem(t, harness.Options{Profiles: dropProfile})
	ctx, cancel := context.WithTimeout(t.Context(), bytesTimeout)
	defer cancel()
	b, session, info := startSession(ctx, t, s, client.CreateOptions{Profile: "drop"})
	const lines = 250_000 // 25 MB
	_, err := session.Input(ctx, "n", fmt.Appendf(nil, "%d\n", lines))
	must(t, err)
	late, err := client.DialSession(ctx, b.SessionSocket(info))
	must(t, err)
	defer late.Close()
	var status wire.Status
	poll(ctx, t, "all is printed and the rest dropped", func() bool {
		status, err = late.Inspect(ctx)
		must(t, err)
		return status.NextSequence == lines+2
	})
	if status.DroppedRecords == 0 || status.LostBefore != status.DroppedRecords+1 || status.OutputStalled || status.SpoolBytes > status.SpoolLimit {
		t.Errorf("the bridge says %+v", status)
	}
	// The writer that was attached all the time and read nothing.
	var gap uint64
	for gap == 0 {
		r, err := session.Next(ctx)
		switch {
		case err == nil:
			checkNumber(t, r)
		case wire.CodeOf(err) == wire.CodeReplayGap:
			gap = lostBefore(err)
		default:
			t.Fatal(err)
		}
	}
	if gap <= 1 || gap > status.LostBefore {
		t.Errorf("the gap of the slow writer ends at %d, the records begin at %d", gap, status.LostBefore)
	}
	session.Close()
	o := client.AttachOptions{Mode: wire.ModeObserver, From: wire.FromCursor, Cursor: &wire.Cursor{Epoch: info.Epoch, Sequence: 1}}
	if _, err := late.Attach(ctx, o); wire.CodeOf(err) != wire.CodeReplayGap || lostBefore(err) != status.LostBefore {
		t.Errorf("at a cursor that is gone: %v, want a gap to %d", err, status.LostBefore)
	}
	attached, err := late.Attach(ctx, client.AttachOptions{Mode: wire.ModeObserver, From: wire.FromOldest})
	if err != nil || attached.LostBefore != status.LostBefore {
		t.Fatalf("%+v, %v", attached, err)
	}
	for sequence := attached.LostBefore; sequence < lines+2; sequence++ {
		r, err := late.Next(ctx)
		must(t, err)
		if r.Sequence != sequence {
			t.Fatalf("record %d is %d", sequence, r.Sequence)
		}
		checkNumber(t, r)
	}
	must(t, b.Delete(ctx, info.Session))
	checkNothing(t, s)
}

func lostBefore(err error) uint64 {
	e, _ := err.(*wire.Error)
	return e.LostBefore
}

// checkNumber wants the number of the record; the word on the other stream
// moves those behind it by one.
func checkNumber(t *testing.T, r client.Record) {
	t.Helper()
	if r.Stream != wire.StreamStdout {
		return
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(string(r.Data), "\n"), 10, 64)
	if err != nil || len(r.Data) != 100 || n != r.Sequence && n+1 != r.Sequence {
		t.Fatalf("record %d is %q", r.Sequence, r.Data)
	}
}

// hoseProfile writes as fast as it can, and gives back on the other stream what
// it gets.
const hoseProfile = `
[profiles.hose]
kind = "program"
framing = "lines"
command = ["/bin/bash", "-c", "yes $(printf %01000d 0) & exec cat >&2"]
spool = "17MiB"
max_record = "1MiB"
`

// R47: a reader that takes one byte a second and one that takes nothing hold up
// neither the agent nor the writer, which gets many times what may be kept for
// them, and its answer.
func TestSlowReadersHoldNobodyUp(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	s := startSmallSystem(t, harness.Options{Profiles: hoseProfile})
	ctx, cancel := context.WithTimeout(t.Context(), bytesTimeout)
	defer cancel()
	b, session, info := startSession(ctx, t, s, client.CreateOptions{Profile: "hose"})
	stopped, dripping := rawObserver(ctx, t, b.SessionSocket(info)), rawObserver(ctx, t, b.SessionSocket(info))
	defer stopped.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for one := make([]byte, 1); ; time.Sleep(time.Second) {
			if _, err := io.ReadFull(dripping, one); err != nil {
				return
			}
		}
	}()
	defer func() {
		dripping.Close()
		<-done
	}()
	const want = 4 * 17 << 20
	line := append(bytes.Repeat([]byte("0"), 1000), '\n')
	asked, answered := false, false
	for got := 0; got < want || !answered; {
		records, err := session.NextBatch(ctx)
		must(t, err)
		for _, r := range records {
			got += len(r.Data)
			answered = answered || r.Stream == wire.StreamStderr && string(r.Data) == "question\n"
			if r.Stream == wire.StreamStdout && !bytes.Equal(r.Data, line) {
				t.Fatalf("record %d is %.100q", r.Sequence, r.Data)
			}
		}
		must(t, session.Ack(ctx, records[len(records)-1].Sequence))
		if !asked && got > want/2 {
			asked = true
			_, err := session.Input(ctx, "question", []byte("question\n"))
			must(t, err)
		}
	}
	must(t, b.Delete(ctx, info.Session))
	checkNothing(t, s)
}

// rawObserver attaches below the client library, which reads ahead.
func rawObserver(ctx context.Context, t *testing.T, socket string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	must(t, err)
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	for _, m := range []wire.Message{
		wire.Hello{Protocol: wire.ProtocolBridge, Versions: []uint64{wire.Version}, MaxFrame: wire.MaxBridgeFrame},
		wire.Attach{ID: 1, Mode: wire.ModeObserver, From: wire.FromLive, Client: "slow"},
	} {
		payload, err := wire.Encode(m)
		must(t, err)
		_, err = conn.Write(wire.AppendFrame(nil, payload))
		must(t, err)
		_, err = wire.ReadFrame(conn, wire.MaxBridgeFrame, nil)
		must(t, err)
	}
	return conn
}
