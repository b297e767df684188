package app_test

import (
	"bytes"
	"crypto/rand"
	"os/exec"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/rig"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// agent runs a program on the agent's ends and reports its exit like runsc
// wait does. The rig's copies of the ends are closed.
func agent(t *testing.T, r *rig.Rig, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r.AgentStdin, r.AgentStdout, r.AgentStderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.AgentStdin.Close()
	r.AgentStdout.Close()
	r.AgentStderr.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := cmd.Wait()
		_ = err // the state below has the status
		status := cmd.ProcessState.ExitCode()
		if status < 0 {
			status = 128 + 9
		}
		r.Exit(status)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
	})
	return cmd
}

// payloads are lines that a careless relay breaks.
func payloads(t *testing.T) [][]byte {
	big := func(n int) []byte {
		b := make([]byte, n)
		if _, err := rand.Read(b); err != nil {
			t.Fatal(err)
		}
		for i, c := range b {
			if c == '\n' {
				b[i] = 'n'
			}
		}
		return append(b, '\n')
	}
	return [][]byte{
		[]byte("hello\n"),
		[]byte("\n"),
		[]byte("\xff\xfe\x80 invalid UTF-8\n"),
		[]byte("nul\x00nul\n"),
		[]byte("cr\rcr\r\n"),
		[]byte("\r\n"),
		[]byte("line\u2028paragraph\u2029nel\u0085\n"),
		big(wire.MaxFragment - 1),
		big(wire.MaxFragment),
		big(8 << 20),
		big(64 << 20),
		[]byte("\n"),
		[]byte("a last line without its end"),
	}
}

// R49: bytes come through unchanged both ways, each line as one record, the
// last one without its line feed included; the exit is the last record.
func TestBytesBothWays(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	agent(t, r, "cat")
	c := r.Writer()
	want := payloads(t)
	for i, p := range want {
		if dup, e := c.Input(string(rune('a'+i)), p); e != nil || dup {
			t.Fatalf("input %d: duplicate %t, %v", i, dup, e)
		}
	}
	if e := c.CloseInput(); e != nil {
		t.Fatal(e)
	}
	for i, p := range want {
		got := c.Next()
		if !bytes.Equal(got.Data, p) || got.Sequence != uint64(i+1) || got.Stream != wire.StreamStdout || got.Flags != 0 {
			t.Fatalf("record %d: sequence %d, stream %d, flags %d, %d bytes; want %d bytes", i, got.Sequence, got.Stream, got.Flags, len(got.Data), len(p))
		}
	}
	exit := c.Next()
	e, err := wire.DecodeExit(exit.Data)
	if err != nil || exit.Stream != wire.StreamExit || e.Code != 0 || e.Signal != "" || e.Reason != wire.ReasonExited {
		t.Fatalf("exit record %+v: %+v, %v", exit, e, err)
	}
	if e.InputAccepted == 0 || e.InputAccepted != e.InputDelivered {
		t.Fatalf("accepted %d, delivered %d", e.InputAccepted, e.InputDelivered)
	}
	st := c.Inspect()
	if st.Exit == nil || *st.Exit != e || st.NextSequence != exit.Sequence+1 || !st.InputClosed {
		t.Fatalf("status %+v", st)
	}
}
