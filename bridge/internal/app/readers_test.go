package app_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/rig"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Longer runs of these tests.
const (
	firehoseVariable = "PASEO_SANDBOX_FIREHOSE" // a duration
	cyclesVariable   = "PASEO_SANDBOX_CYCLES"   // a number
)

func firehoseTime(t *testing.T) time.Duration {
	t.Helper()
	value := os.Getenv(firehoseVariable)
	if value == "" {
		return 4 * time.Second
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// residentMemory returns VmRSS of a process in bytes (proc_pid_status(5)).
func residentMemory(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// discard reads an observer's records until the connection ends, which its
// test does, or the writer's acks.
func discard(c *rig.Client) {
	for {
		if _, err := c.Conn.ReadMessage(wire.BridgeReplies); err != nil {
			return
		}
	}
}

// R47: an agent that writes as fast as it can, a writer that keeps up, and ten
// observers, of which one reads a byte a second and one nothing: the bridge's
// memory stays flat, nobody is held up, and an answer never stands behind more
// records than the socket holds.
func TestFirehoseWithManyReaders(t *testing.T) {
	r := rig.New(t, rig.Options{MaxRecord: 1 << 20, SpoolLimit: 48 << 20})
	b := launch(t, r)
	defer b.kill(t)
	b.WaitReady()
	w := r.Writer()
	stop := make(chan struct{})
	var owned sync.WaitGroup
	for i := range 10 {
		o := r.Observer(wire.FromLive)
		switch i {
		case 0: // reads nothing
		case 1:
			owned.Go(func() { aByteASecond(o, stop) })
		default:
			owned.Go(func() { discard(o) })
		}
		defer o.Close()
	}
	owned.Go(func() {
		defer r.AgentStdout.Close()
		batch := bytes.Repeat(append(bytes.Repeat([]byte("f"), 999), '\n'), 100)
		for !isClosed(stop) {
			if _, err := r.AgentStdout.Write(batch); err != nil {
				return
			}
		}
	})
	rss, behind, records := drinkFirehose(t, r, w, b.cmd.Process.Pid, firehoseTime(t))
	close(stop)
	half := len(rss) / 2
	first, second := slices.Max(rss[:half]), slices.Max(rss[half:])
	t.Logf("%d records; RSS at most %d MiB, then %d MiB; %d pings, at most %d bytes of records in front of an answer", records, first>>20, second>>20, len(behind), slices.Max(behind))
	if second > first+first/2+16<<20 {
		t.Errorf("the bridge's memory grows from %d to %d bytes", first, second)
	}
	if records == 0 || len(behind) < 10 {
		t.Error("the test moved nothing")
	}
	// The send buffer, which the kernel doubles, the receive buffer, and one
	// frame that was begun.
	slices.Sort(behind)
	if median := behind[len(behind)/2]; median > 2<<20 {
		t.Errorf("the median answer stands behind %d bytes of records", median)
	}
	w.Close()
	// Closing the observers ends their goroutines, and the end of the pipe's
	// readers that of the agent.
	t.Cleanup(func() {
		r.Drop()
		owned.Wait()
	})
}

// drinkFirehose reads and acknowledges for a time, with a ping always on its
// way. It returns the bridge's memory over time, and how many bytes of records
// came between each ping and its pong.
func drinkFirehose(t *testing.T, r *rig.Rig, w *rig.Client, pid int, d time.Duration) (rss, behind []int64, records uint64) {
	t.Helper()
	end := time.Now().Add(d)
	var ping, since int64
	var acked uint64
	id := uint64(1 << 20)
	// Enough rounds for a verdict, however slow the machine is.
	for time.Now().Before(end) || len(behind) < 20 {
		if ping == 0 {
			id++
			ping, since = int64(id), 0
			w.Send(wire.Ping{ID: id})
		}
		m, err := w.TryRead()
		if err != nil {
			t.Fatal(err)
		}
		switch m := m.(type) {
		case wire.Records:
			for _, rec := range m.Records {
				since += int64(len(rec.Data))
				records = rec.Sequence
			}
		case wire.Pong:
			behind = append(behind, since)
			rss = append(rss, residentMemory(t, pid))
			ping = 0
		}
		if records > acked+4000 {
			id++
			acked = records
			w.Send(wire.Ack{ID: id, Lease: w.Attached.Lease, Cursor: wire.Cursor{Epoch: r.Epoch, Sequence: acked}})
		}
	}
	return rss, behind, records
}

func aByteASecond(o *rig.Client, stop <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			if _, err := o.NC.Read(make([]byte, 1)); err != nil {
				return
			}
		}
	}
}

// R42, R47: attaching and detaching leaves nothing behind: no goroutine, no
// descriptor, no memory.
func TestAttachAndDetach(t *testing.T) {
	cycles := 300
	if value := os.Getenv(cyclesVariable); value != "" {
		n, err := strconv.Atoi(value)
		if err != nil {
			t.Fatal(err)
		}
		cycles = n
	}
	r := rig.New(t, rig.Options{})
	r.Start()
	if err := writeNumbered(r.AgentStdout, 1, 3); err != nil {
		t.Fatal(err)
	}
	cycle := func(i int) {
		c := r.Connection()
		if c == nil {
			t.Fatal("the bridge takes no connection")
		}
		defer c.Close()
		m := wire.Attach{Mode: wire.ModeObserver, From: wire.FromOldest}
		if i%2 == 0 {
			m.Mode, m.Takeover, m.LeaseMillis = wire.ModeWriter, true, wire.MaxLeaseMillis
		}
		if e := c.TryAttach(m); e != nil {
			t.Fatal(e)
		}
		expectNumbered(t, c, 1, 3)
	}
	for i := range 50 {
		cycle(i)
	}
	c := r.Connect()
	settled := func() bool { return c.Inspect().Observers == 0 && !c.Inspect().HasWriter }
	eventually(t, "the clients to be gone", settled)
	goroutines, fds, heap := runtime.NumGoroutine(), descriptors(t), heapInUse()
	for i := range cycles {
		cycle(i)
	}
	eventually(t, "the clients to be gone", settled)
	eventually(t, "goroutines and descriptors to be as before", func() bool {
		return runtime.NumGoroutine() <= goroutines && descriptors(t) <= fds
	})
	if after := heapInUse(); after > heap+8<<20 {
		t.Errorf("the heap grew from %d to %d bytes over %d cycles", heap, after, cycles)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// R42, R47: the fragments that a fenced writer has sent are freed when it is
// fenced, though its connection stays and says nothing more.
func TestFencedFragmentsAreFreed(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	c := r.Writer()
	before := heapInUse()
	data := make([]byte, wire.MaxFragment)
	const fragments = 96 // 24 MiB
	for i := range fragments {
		c.Send(wire.Input{ID: c.NextID(), Lease: c.Attached.Lease, InputID: "never", Offset: uint64(i * len(data)), More: true, Data: data})
	}
	c.Inspect() // they have come in
	if held := heapInUse() - before; held < 16<<20 {
		t.Fatalf("only %d bytes are held, the test shows nothing", held)
	}
	r.Attach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromOldest, Takeover: true})
	if held := heapInUse() - before; held > 8<<20 {
		t.Fatalf("%d bytes of a fenced writer are held", held)
	}
	// Its connection goes on, and the end of that input is refused.
	c.Send(wire.Input{ID: c.NextID(), Lease: c.Attached.Lease, InputID: "never", Offset: fragments * uint64(len(data)), Data: data})
	_, e := c.Await(uint64(fragments) + 3)
	wantCode(t, e, wire.CodeStaleWriter)
}

// R31, R43: an agent that closes its input early: later inputs are refused,
// output and the end are as ever, and the exit tells what was not delivered.
func TestAgentClosesInput(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	c := r.Writer()
	r.AgentStdin.Close()
	accepted := uint64(0)
	eventually(t, "an input to be refused", func() bool {
		_, e := c.Input(fmt.Sprint(accepted), []byte("unheard\n"))
		if e == nil {
			accepted++
			return false
		}
		wantCode(t, e, wire.CodeRuntimeNotWritable)
		return true
	})
	if _, err := r.AgentStdout.WriteString("still here\n"); err != nil {
		t.Fatal(err)
	}
	c.Expect(wire.StreamStdout, []byte("still here\n"))
	if e := c.CloseInput(); e != nil {
		t.Fatal(e)
	}
	r.AgentStdout.Close()
	r.AgentStderr.Close()
	r.Exit(0)
	exit, err := wire.DecodeExit(c.Next().Data)
	if err != nil || exit.InputDelivered != 0 || exit.InputAccepted != accepted*8 {
		t.Fatalf("exit %+v, %v; %d inputs were accepted", exit, err, accepted)
	}
}
