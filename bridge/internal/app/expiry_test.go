package app_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/rig"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// inherit attaches a writer without takeover, as soon as the seat is free.
func inherit(t *testing.T, r *rig.Rig) *rig.Client {
	t.Helper()
	c := r.Connect()
	eventually(t, "the seat to be free", func() bool {
		e := c.TryAttach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromOldest, Client: "heir"})
		if e != nil && e.Code != wire.CodeWriterAlreadyAttached {
			t.Fatal(e)
		}
		return e == nil
	})
	return c
}

// R42: a writer that is silent for its lease loses the seat without a
// takeover, is told so, and nothing that it sends afterwards has an effect:
// not the rest of a frame or of an input that was on its way either.
func TestLeaseExpires(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	c := r.Attach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromOldest, LeaseMillis: wire.MinLeaseMillis})
	if c.Attached.LeaseMillis != wire.MinLeaseMillis {
		t.Fatalf("attached %+v", c.Attached)
	}
	lease := c.Attached.Lease
	c.Send(wire.Input{ID: c.NextID(), Lease: lease, InputID: "halves", More: true, Data: []byte("first half, ")})
	frame, err := wire.AppendMessageFrame(nil, wire.Input{ID: c.NextID(), Lease: lease, InputID: "halves", Offset: 12, Data: []byte("second half\n")}, wire.MaxBridgeFrame)
	if err != nil {
		t.Fatal(err)
	}
	half := len(frame) / 2
	if _, err := c.NC.Write(frame[:half]); err != nil {
		t.Fatal(err)
	}
	heir := inherit(t, r)
	if heir.Attached.Generation != 2 || heir.Attached.LeaseMillis != 0 {
		t.Fatalf("attached %+v", heir.Attached)
	}
	if _, err := c.NC.Write(frame[half:]); err != nil {
		t.Fatal(err)
	}
	_, e := c.Await(2 + 1) // the attach was 1
	wantCode(t, e, wire.CodeStaleWriter)
	for name, make := range everyRight(lease, r.Epoch) {
		if e := ask(c, make); e == nil || e.Code != wire.CodeStaleWriter {
			t.Errorf("%s with an expired lease: %v", name, e)
		}
	}
	if c.Fenced == nil || c.Fenced.Generation != 1 {
		t.Fatalf("the writer was told %+v", c.Fenced)
	}
	if st := heir.Inspect(); st.InputAccepted != 0 || st.InputClosed || st.Generation != 2 || !st.HasWriter || st.LeaseMillis != 0 {
		t.Fatalf("status %+v", st)
	}
	if len(r.Signals) != 0 {
		t.Fatal("an expired writer's signal reached the broker")
	}
}

// R42: the seat of a silent writer is seen to be free, and the writer told,
// though nobody asks for it.
func TestExpiryIsTold(t *testing.T) {
	r := rig.New(t, rig.Options{LeaseMillis: wire.MinLeaseMillis})
	r.Start()
	c := r.Writer()
	if c.Attached.LeaseMillis != wire.MinLeaseMillis {
		t.Fatalf("the session's lease is not the default: %+v", c.Attached)
	}
	for c.Fenced == nil {
		if err := c.Step(); err != nil {
			t.Fatal(err)
		}
	}
	if st := c.Inspect(); st.HasWriter || st.Observers != 1 || st.LeaseRemainingMillis != 0 {
		t.Fatalf("status %+v", st)
	}
}

// R42: every message renews the lease, in full; status shows what is left.
func TestLeaseIsRenewed(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	c := r.Attach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromOldest, LeaseMillis: wire.MaxLeaseMillis})
	o := r.Observer(wire.FromLive)
	for name, m := range map[string]func(id uint64) wire.Message{
		"ping": func(id uint64) wire.Message { return wire.Ping{ID: id} },
		"ack": func(id uint64) wire.Message {
			return wire.Ack{ID: id, Lease: "wrong", Cursor: wire.Cursor{Epoch: r.Epoch}}
		},
		"bad": func(id uint64) wire.Message { return wire.Inspect{ID: id} },
		"input": func(id uint64) wire.Message {
			return wire.Input{ID: id, Lease: c.Attached.Lease, InputID: fmt.Sprint(id), Data: []byte("x")}
		},
	} {
		var before uint64
		eventually(t, "some of the lease to pass", func() bool {
			before = o.Inspect().LeaseRemainingMillis
			return before <= wire.MaxLeaseMillis-20
		})
		ask(c, m)
		if st := o.Inspect(); st.LeaseRemainingMillis <= before || st.LeaseMillis != wire.MaxLeaseMillis {
			t.Errorf("%s: %d ms were left, then %d", name, before, st.LeaseRemainingMillis)
		}
	}
}

// R42: leases out of bounds are refused, and an observer has none.
func TestLeaseBounds(t *testing.T) {
	for _, m := range []wire.Attach{
		{ID: 1, Mode: wire.ModeWriter, From: wire.FromLive, LeaseMillis: wire.MinLeaseMillis - 1},
		{ID: 1, Mode: wire.ModeWriter, From: wire.FromLive, LeaseMillis: wire.MaxLeaseMillis + 1},
		{ID: 1, Mode: wire.ModeObserver, From: wire.FromLive, LeaseMillis: wire.MinLeaseMillis},
	} {
		if m.Validate() == nil {
			t.Errorf("%+v is accepted", m)
		}
	}
}

// R42: what lies unread in a bridge that was stopped itself has no effect once
// the lease has run out.
func TestLeaseExpiresInStoppedBridge(t *testing.T) {
	r := rig.New(t, rig.Options{})
	b := launch(t, r)
	defer b.kill(t)
	b.WaitReady()
	c := r.Attach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromOldest, LeaseMillis: wire.MinLeaseMillis})
	pid := b.cmd.Process.Pid
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the bridge to stop", func() bool { return processState(t, pid) == 'T' })
	id := c.SendInput("late", []byte("late\n"))
	// Nothing but time ends a lease.
	<-time.After(1100 * time.Millisecond)
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	_, e := c.Await(id)
	wantCode(t, e, wire.CodeStaleWriter)
	if st := c.Inspect(); st.InputAccepted != 0 || st.HasWriter {
		t.Fatalf("status %+v", st)
	}
}

func processState(t *testing.T, pid int) byte {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return stat[bytes.LastIndexByte(stat, ')')+2]
}

// R42: the Go client keeps its seat while it has nothing to say.
func TestClientShowsLife(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	s := dialClient(t, r)
	defer s.Close()
	const lease = 12 * time.Second // a sign of life comes after 4
	if _, err := s.Attach(t.Context(), client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromOldest, Lease: lease}); err != nil {
		t.Fatal(err)
	}
	o := r.Observer(wire.FromLive)
	last := o.Inspect().LeaseRemainingMillis
	eventually(t, "a sign of life", func() bool {
		before := last
		last = o.Inspect().LeaseRemainingMillis
		return last > before
	})
	if err := s.Ack(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
}

func dialClient(t *testing.T, r *rig.Rig) *client.Session {
	t.Helper()
	s, err := client.DialSession(t.Context(), r.SocketPath())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// writerVariable makes the test binary be a writer that gives input as fast as
// it can to the session at that path, until it can't.
const writerVariable = "PASEO_SANDBOX_TEST_WRITER"

func writerMain(socket string) error {
	ctx := context.Background()
	s, err := client.DialSession(ctx, socket)
	if err != nil {
		return err
	}
	defer s.Close()
	if _, err := s.Attach(ctx, client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromOldest, Lease: 5 * time.Second}); err != nil {
		return err
	}
	payload := append(bytes.Repeat([]byte("z"), 1<<20), '\n')
	for i := 0; ; i++ {
		binary.BigEndian.PutUint64(payload, uint64(i))
		if _, err := s.Input(ctx, fmt.Sprint("child ", i), payload); err != nil {
			fmt.Println("input:", wire.CodeOf(err))
			break
		}
	}
	for {
		if _, err := s.Next(ctx); err != nil {
			fmt.Println("next:", wire.CodeOf(err))
			return nil
		}
	}
}

// R42: a daemon that is stopped in the middle of its inputs, bytes in its
// socket included, loses the seat; when it goes on it is told, and not one
// byte more of it reaches the agent.
func TestStoppedWriterIsFenced(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	received := make(chan []byte, 1)
	go func() { received <- drainAgent(r.AgentStdin) }()
	var said bytes.Buffer
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), writerVariable+"="+r.SocketPath())
	cmd.Stdout, cmd.Stderr = &said, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	o := r.Observer(wire.FromLive)
	eventually(t, "some inputs", func() bool { return o.Inspect().InputAccepted > 3<<20 })
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	heir := inherit(t, r)
	accepted := heir.Inspect().InputAccepted
	if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := said.String(); got != "input: stale_writer\nnext: lease_expired\n" {
		t.Fatalf("the stopped writer learned %q", got)
	}
	if now := heir.Inspect().InputAccepted; now != accepted {
		t.Fatalf("%d bytes of the stopped writer were accepted after it had lost the seat", now-accepted)
	}
	if _, e := heir.Input("heir", []byte("heir\n")); e != nil {
		t.Fatal(e)
	}
	if e := heir.CloseInput(); e != nil {
		t.Fatal(e)
	}
	if all := <-received; uint64(len(all)) != accepted+5 || !strings.HasSuffix(string(all), "\nheir\n") {
		t.Fatalf("%d bytes arrived, %d and 5 were accepted", len(all), accepted)
	}
}

// drainAgent reads the agent's input to its end.
func drainAgent(f *os.File) []byte {
	var all bytes.Buffer
	_, err := all.ReadFrom(f)
	if err != nil && !errors.Is(err, os.ErrClosed) {
		fmt.Fprintln(&all, err)
	}
	return all.Bytes()
}
