package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/client/clienttest"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

var runArgs = []string{"run", "--workspace", clienttest.Workspace}

// R49, R50: bytes come through as they are, the end of the input ends the
// agent, and nothing is left.
func TestRun(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	extension := filepath.Join(t.TempDir(), "ask.ts")
	if err := os.WriteFile(extension, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	in := "a\n\n\xff\x00\r\n\u2028\n" + strings.Repeat("long", 1<<20) + "\nlast"
	args := append(runArgs, "--profile", "pi", "--session-id", "s", "--model", "p/m", "--thinking", "low", "--extension", extension)
	status, out, errs := call(t, server, in, args...)
	if status != 0 || out != in {
		t.Fatalf("%d, %d bytes, %s", status, len(out), errs)
	}
	if !strings.Contains(errs, "session 01010101") || len(server.Sessions()) != 0 {
		t.Fatalf("%d sessions are left; stderr: %s", len(server.Sessions()), errs)
	}
	m := server.Requests()[0].(wire.Create)
	if m.Profile != "pi" || m.AgentSession != "s" || m.Model != "p/m" || m.Thinking != "low" || len(m.Attachments) != 1 || m.Attachments[0].Name != "ask.ts" {
		t.Fatalf("asked for %+v", m)
	}
}

// R31: the agent's status is the command's, stderr is apart, and --keep keeps
// the session.
func TestRunStatus(t *testing.T) {
	server := clienttest.Start(t, func(p *clienttest.Process) wire.Exit {
		io.WriteString(p.Stdout, "out\n")
		io.WriteString(p.Stderr, "err\n")
		return clienttest.Exited(7)
	})
	status, out, errs := call(t, server, "", append(runArgs, "--keep")...)
	if status != 7 || out != "out\n" || !strings.Contains(errs, "err\n") {
		t.Fatalf("%d, %q, %q", status, out, errs)
	}
	sessions := server.Sessions()
	if len(sessions) != 1 {
		t.Fatal("the session was not kept")
	}
	// All of it was acknowledged: attaching again finds the end only.
	status, out, _ = call(t, server, "", "attach", string(sessions[0].Session))
	if status != 7 || out != "" {
		t.Fatalf("%d, %q", status, out)
	}
}

// R50: one interrupt stops the agent in order: end of input, TERM, KILL.
func TestRunInterrupted(t *testing.T) {
	stubborn := func(p *clienttest.Process) wire.Exit {
		io.Copy(p.Stdout, p.Stdin)
		for name := range p.Signals {
			fmt.Fprintf(p.Stdout, "%s\n", name)
			if name == "KILL" {
				break
			}
		}
		return clienttest.Killed("KILL", 9)
	}
	server := clienttest.Start(t, stubborn)
	c := start(t, server, append(runArgs, "--grace", "50ms")...)
	c.write("a\n")
	c.read("a\n")
	c.signal(syscall.SIGINT)
	c.read("TERM\n")
	c.wait(137)
	if len(server.Sessions()) != 0 || !strings.Contains(c.stderr.String(), "interrupt again") {
		t.Fatalf("stderr: %s", c.stderr.String())
	}
}

// A second interrupt leaves at once and says how to go on.
func TestRunInterruptedTwice(t *testing.T) {
	server := clienttest.Start(t, func(p *clienttest.Process) wire.Exit {
		io.Copy(p.Stdout, p.Stdin)
		for name := range p.Signals {
			if name == "KILL" {
				break
			}
		}
		return clienttest.Killed("KILL", 9)
	})
	c := start(t, server, append(runArgs, "--grace", "1m")...)
	c.write("a\n")
	c.read("a\n")
	c.signal(syscall.SIGINT)
	c.says("interrupt again")
	c.signal(syscall.SIGTERM)
	c.wait(130)
	if s := server.Sessions(); len(s) != 1 || !strings.Contains(c.stderr.String(), "paseo-sandbox attach "+string(s[0].Session)) {
		t.Fatalf("%d sessions; stderr: %s", len(s), c.stderr.String())
	}
}

// With --on-exit=release an interrupt leaves the agent running.
func TestRunReleased(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	c := start(t, server, append(runArgs, "--on-exit=release")...)
	c.write("a\n")
	c.read("a\n")
	c.signal(syscall.SIGINT)
	c.wait(0)
	c.says("detached")
	if s := server.Sessions(); len(s) != 1 || s[0].State != wire.StateRunning {
		t.Fatalf("got %+v", s)
	}
}

// A reader that goes away ends the agent of run, with an error.
func TestRunOutputClosed(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	c := start(t, server, append(runArgs, "--grace", "100ms")...)
	c.write("a\n")
	c.read("a\n")
	c.stdout.Close()
	c.write("b\n")
	c.cmd.Wait()
	if got := c.cmd.ProcessState.ExitCode(); got != 1 || !strings.Contains(c.stderr.String(), string(codeOutputClosed)) {
		t.Fatalf("exit status %d, stderr: %s", got, c.stderr.String())
	}
	if len(server.Sessions()) != 0 {
		t.Fatal("the session is left")
	}
}

// R42, R44: detaching leaves the agent running, another one takes its place,
// sees what is new and looks on beside.
func TestAttach(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	id := string(server.Add(t).Session)
	one := start(t, server, "attach", id)
	one.write("a\n")
	one.read("a\n")
	status, _, errs := call(t, server, "", "attach", id)
	if status != 1 || !strings.Contains(errs, "writer_already_attached") {
		t.Fatalf("%d, %s", status, errs)
	}
	observer := start(t, server, "attach", "--observe", "--from", "live", id)
	observer.says("attached")
	two := start(t, server, "attach", "--takeover", id)
	one.wait(1)
	if !strings.Contains(one.stderr.String(), "stale_writer") {
		t.Fatalf("stderr: %s", one.stderr.String())
	}
	two.write("b\n")
	two.read("b\n")
	observer.read("b\n")
	two.signal(syscall.SIGINT)
	two.wait(0)
	two.says("detached")
	observer.signal(syscall.SIGINT)
	observer.wait(0)
	if s := server.Sessions()[0]; s.State != wire.StateRunning {
		t.Fatalf("the session is %s", s.State)
	}
	status, out, _ := call(t, server, "c\n", "attach", id)
	if status != 0 || out != "c\n" {
		t.Fatalf("%d, %q", status, out)
	}
}

// R41: a cursor file makes a second attachment go on where the first ended.
func TestAttachWithCursorFile(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	id := string(server.Add(t).Session)
	file := filepath.Join(t.TempDir(), "cursor")
	for _, text := range []string{"a\n", "b\n"} {
		c := start(t, server, "attach", "--detach-on-eof", "--cursor-file", file, id)
		c.write(text)
		c.read(text)
		c.stdin.Close()
		c.wait(0)
	}
	cursor, err := client.LoadCursor(file)
	if err != nil || cursor.Sequence != 2 {
		t.Fatalf("got %+v, %v", cursor, err)
	}
	observer := start(t, server, "attach", "--observe", "--cursor", client.FormatCursor(cursor), id)
	observer.says("attached")
	c := start(t, server, "attach", id)
	c.write("c\n")
	observer.read("c\n")
	c.stdin.Close()
	c.wait(0)
	observer.wait(0)
}

// R45: a request that waits for an answer is shown again.
func TestAttachShowsPendingRequests(t *testing.T) {
	const request = `{"type":"extension_ui_request","id":"q1"}` + "\n"
	server := clienttest.Start(t, func(p *clienttest.Process) wire.Exit {
		io.WriteString(p.Stdout, request)
		return clienttest.Echo(p)
	})
	id := string(server.Add(t).Session)
	one := start(t, server, "attach", "--detach-on-eof", id)
	one.read(request)
	one.stdin.Close()
	one.wait(0)
	status, out, errs := call(t, server, "x\n", "attach", id)
	if status != 0 || out != request+"x\n" {
		t.Fatalf("%d, %q, %s", status, out, errs)
	}
}

// R43, R48: the death of the bridge's connections is not seen in the bytes, in
// either direction.
func TestReconnect(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	c := start(t, server, runArgs...)
	const lines = 300
	go func() {
		w := bufio.NewWriter(c.stdin)
		for i := range lines {
			fmt.Fprintf(w, "line %d\n", i)
		}
		w.Flush()
		c.stdin.Close()
	}()
	for i := range lines {
		c.read(fmt.Sprintf("line %d\n", i))
		if i%50 == 25 {
			server.KillBridge(server.Sessions()[0].Session)
		}
	}
	c.wait(0)
}

// R42: a relay whose lease has run out, because a shell stopped it, goes on
// when nobody else is the writer, and no byte of either direction is missing.
func TestLeaseExpired(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	c := start(t, server, runArgs...)
	for i := range 5 {
		c.write(fmt.Sprintf("line %d\n", i))
		c.read(fmt.Sprintf("line %d\n", i))
		if !server.ExpireLease(server.Sessions()[0].Session) {
			t.Fatal("the relay is not the writer")
		}
		c.write(fmt.Sprintf("after %d\n", i))
		c.read(fmt.Sprintf("after %d\n", i))
	}
	c.stdin.Close()
	c.wait(0)
}

// A session that is deleted under the command is an error, not the end.
func TestSessionGone(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	id := string(server.Add(t).Session)
	c := start(t, server, "attach", "--observe", id)
	c.says("attached")
	status, _, _ := call(t, server, "", "stop", "--delete", id)
	if status != 0 {
		t.Fatal(status)
	}
	// The exit may have come before the end of the connection.
	c.cmd.Wait()
	if got := c.cmd.ProcessState.ExitCode(); got != 1 && got != 143 {
		t.Fatalf("exit status %d, stderr: %s", got, c.stderr.String())
	}
}
