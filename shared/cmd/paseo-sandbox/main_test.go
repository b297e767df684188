package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/client/clienttest"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"go.uber.org/goleak"
)

// commandVariable makes the test's executable the command itself.
const commandVariable = "PASEO_SANDBOX_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(commandVariable) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// buffer is written by several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// call runs the command in this process.
func call(t *testing.T, server *clienttest.Server, stdin string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs buffer
	a := &app{stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs, runDir: t.TempDir(), getenv: func(string) string { return "" }}
	if server != nil {
		args = append(args, "--socket", server.Socket())
	}
	status = a.main(args)
	return status, out.String(), errs.String()
}

// command is the command as a process.
type command struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout io.ReadCloser
	stderr buffer
}

func start(t *testing.T, server *clienttest.Server, args ...string) *command {
	t.Helper()
	c := &command{t: t, cmd: exec.Command(os.Args[0], append(args, "--socket", server.Socket())...)}
	c.cmd.Env = append(os.Environ(), commandVariable+"=1")
	c.cmd.Stderr = &c.stderr
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if c.stdout, err = c.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.cmd.Process.Kill() })
	return c
}

func (c *command) write(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c.stdin, s); err != nil {
		c.t.Fatal(err)
	}
}

// read reads exactly what is expected.
func (c *command) read(want string) {
	c.t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c.stdout, got); err != nil || string(got) != want {
		c.t.Fatalf("read %q, %v; stderr: %s", got, err, c.stderr.String())
	}
}

// says waits for words on standard error.
func (c *command) says(want string) {
	c.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(c.stderr.String(), want); {
		if time.Now().After(deadline) {
			c.t.Fatalf("it does not say %q but %q", want, c.stderr.String())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (c *command) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

func (c *command) wait(status int) {
	c.t.Helper()
	timer := time.AfterFunc(30*time.Second, func() { c.cmd.Process.Kill() })
	defer timer.Stop()
	io.Copy(io.Discard, c.stdout)
	c.cmd.Wait()
	if got := c.cmd.ProcessState.ExitCode(); got != status {
		c.t.Fatalf("exit status %d instead of %d; stderr: %s", got, status, c.stderr.String())
	}
}

// R30: ls, inspect and stop, for people and for programs, by a part of an id.
func TestListInspectStop(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	one, two := server.Add(t), server.Add(t)
	status, out, _ := call(t, server, "", "ls")
	if status != 0 || !strings.Contains(out, string(one.Session)) || !strings.Contains(out, "running") {
		t.Fatalf("%d, %s", status, out)
	}
	var list []struct{ Session, State string }
	_, out, _ = call(t, server, "", "ls", "--json")
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 2 || list[1].Session != string(two.Session) {
		t.Fatalf("%v: %s", err, out)
	}
	status, out, _ = call(t, server, "", "inspect", string(one.Session[:8]))
	if status != 0 || !strings.Contains(out, "epoch "+string(one.Epoch)) {
		t.Fatalf("%d, %s", status, out)
	}
	var both struct {
		Broker struct{ Session string }
		Bridge struct{ NextSequence int }
	}
	_, out, _ = call(t, server, "", "inspect", "--json", string(one.Session))
	if err := json.Unmarshal([]byte(out), &both); err != nil || both.Broker.Session != string(one.Session) || both.Bridge.NextSequence != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	status, out, _ = call(t, server, "", "stop", string(one.Session[:8]))
	if status != 0 || !strings.Contains(out, "signal TERM") || len(server.Sessions()) != 2 {
		t.Fatalf("%d, %s", status, out)
	}
	status, _, _ = call(t, server, "", "stop", "--json", "--delete", string(two.Session))
	if status != 0 || len(server.Sessions()) != 1 {
		t.Fatalf("%d, %d sessions", status, len(server.Sessions()))
	}
}

// R71: each failure has its code, its advice and its exit status.
func TestFailures(t *testing.T) {
	server := clienttest.Start(t, clienttest.Echo)
	session := string(server.Add(t).Session)
	for range 16 {
		server.Add(t) // ids that begin with 0 and with 1 come more than once
	}
	for _, c := range []struct {
		name   string
		args   []string
		code   wire.Code
		status int
	}{
		{"no command", []string{"nonsense"}, codeUsage, 2},
		{"no such flag", []string{"ls", "--nonsense"}, codeUsage, 2},
		{"too many arguments", []string{"ls", "a"}, codeUsage, 2},
		{"too few arguments", []string{"inspect"}, codeUsage, 2},
		{"no workspace", []string{"run"}, codeUsage, 2},
		{"workspace and path", []string{"run", "--workspace", "site", "--path", "/site"}, codeUsage, 2},
		{"folder without", []string{"run", "--folder", "a"}, codeUsage, 2},
		{"folder above", []string{"run", "--workspace", "site", "--folder", "../b"}, wire.CodePathParent, 1},
		{"path not clean", []string{"run", "--path", "/site/"}, wire.CodePathNotClean, 1},
		{"no such path", []string{"run", "--path", "/nowhere"}, wire.CodePathUnregistered, 1},
		{"bad on-exit", []string{"run", "--workspace", "site", "--on-exit", "explode"}, codeUsage, 2},
		{"bad input", []string{"run", "--workspace", "site", "--input", "words"}, codeUsage, 2},
		{"bad grace", []string{"stop", "--grace", "1h", session}, codeUsage, 2},
		{"observer takes over", []string{"attach", "--observe", "--takeover", session}, codeUsage, 2},
		{"two cursors", []string{"attach", "--cursor", "a", "--cursor-file", "b", session}, codeUsage, 2},
		{"no cursor", []string{"attach", "--from", "cursor", session}, codeUsage, 2},
		{"cursor and live", []string{"attach", "--from", "live", "--cursor", "a", session}, codeUsage, 2},
		{"bad from", []string{"attach", "--from", "yesterday", session}, codeUsage, 2},
		{"no cursor file", []string{"attach", "--from", "cursor", "--cursor-file", "/nonexistent/c", session}, codeUsage, 2},
		{"bad cursor", []string{"attach", "--cursor", "yesterday", session}, wire.CodeInvalidCursor, 1},
		{"cursor of another session", []string{"attach", "--cursor", "0000000000000000:1", session}, wire.CodeInvalidCursor, 1},
		{"unknown workspace", []string{"run", "--workspace", "nowhere"}, wire.CodeUnknownWorkspace, 1},
		{"no workspace's name", []string{"run", "--workspace", "../etc"}, wire.CodeInvalidArgument, 1},
		{"no extension", []string{"run", "--workspace", "site", "--extension", "/nonexistent/x.ts"}, codeUnreadableFile, 1},
		{"unknown session", []string{"inspect", "ffff"}, wire.CodeUnknownSession, 1},
		{"unknown id", []string{"stop", strings.Repeat("f", 32)}, wire.CodeUnknownSession, 1},
		{"ambiguous session", []string{"inspect", "0"}, codeAmbiguousSession, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, _, errs := call(t, server, "", c.args...)
			if status != c.status || !strings.HasPrefix(errs, "paseo-sandbox: "+string(c.code)+": ") || !strings.Contains(errs, "\nwhat to do: ") {
				t.Errorf("%d, %s", status, errs)
			}
			_, _, errs = call(t, server, "", append(c.args, "--json")...)
			var e struct {
				Error struct{ Code, Message, Advice string }
			}
			if err := json.Unmarshal([]byte(errs), &e); err != nil || e.Error.Code != string(c.code) || e.Error.Message == "" {
				t.Errorf("%v: %s", err, errs)
			}
		})
	}
}

// The socket comes from the flag, the environment, the only deployment of this
// user, and the place in a container, in this order.
func TestFindSocket(t *testing.T) {
	dir := t.TempDir()
	env := ""
	a := &app{runDir: dir, getenv: func(string) string { return env }}
	want := func(path string) {
		t.Helper()
		if got, err := a.findSocket(); err != nil || got != path {
			t.Fatalf("got %s, %v, want %s", got, err, path)
		}
	}
	touch := func(name string) string {
		t.Helper()
		path := filepath.Join(dir, "d", name, "broker.sock")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	want(filepath.Join(dir, "broker.sock"))
	one := touch("one")
	want(one)
	two := touch("two")
	_, err := a.findSocket()
	if wire.CodeOf(err) != codeSeveralBrokers || !strings.Contains(err.Error(), one) || !strings.Contains(err.Error(), two) {
		t.Fatalf("got %v", err)
	}
	env = "/env"
	want("/env")
	a.socket = "/flag"
	want("/flag")
}

// R71: a missing broker and a missing permission have exit statuses of their
// own.
func TestUnreachable(t *testing.T) {
	status, _, errs := call(t, nil, "", "ls", "--socket", "/nonexistent/broker.sock")
	if status != 3 || !strings.Contains(errs, "broker_unreachable") {
		t.Fatalf("%d, %s", status, errs)
	}
	for err, want := range map[error]int{
		&wire.Error{Code: wire.CodeBrokerUnreachable, Err: os.ErrPermission}: 4,
		&wire.Error{Code: wire.CodePermissionDenied}:                         4,
		&wire.Error{Code: wire.CodeBrokerUnreachable}:                        3,
		&wire.Error{Code: wire.CodeStorageFull}:                              1,
		io.ErrClosedPipe:                                                     1,
	} {
		if got := statusOf(err); got != want {
			t.Errorf("%v: %d instead of %d", err, got, want)
		}
	}
}

// What takes over two seconds is mentioned, to whom it may interest.
func TestProgress(t *testing.T) {
	var errs buffer
	a := &app{stderr: &errs}
	a.progress("nobody looks …")()
	a.verbose = true
	a.progress("quick …")()
	done := a.progress("slow …")
	defer done()
	for deadline := time.Now().Add(5 * patience); errs.String() == ""; {
		if time.Now().After(deadline) {
			t.Fatal("nothing is said")
		}
		time.Sleep(20 * time.Millisecond)
	}
	if got := errs.String(); got != "paseo-sandbox: slow …\n" {
		t.Fatalf("it says %q", got)
	}
}
