package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// exchangeTimeout bounds one refused exchange.
const exchangeTimeout = 15 * time.Second

// hello returns the frame of a broker hello with the given versions.
func hello(t *testing.T, versions ...uint64) []byte {
	t.Helper()
	return message(t, wire.Hello{Protocol: wire.ProtocolBroker, Versions: versions, MaxFrame: wire.MaxBrokerFrame})
}

func message(t *testing.T, m wire.Message) []byte {
	t.Helper()
	b, err := wire.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	return wire.AppendFrame(nil, b)
}

// frame wraps bytes that need not be a message.
func frame(b string) []byte { return wire.AppendFrame(nil, []byte(b)) }

// forged is a message with one text replaced by another of the same length,
// which our own encoder would refuse.
func forged(t *testing.T, m wire.Message, from, to string) []byte {
	t.Helper()
	if len(from) != len(to) {
		t.Fatalf("%q and %q differ in length", from, to)
	}
	return bytes.ReplaceAll(message(t, m), []byte(from), []byte(to))
}

// say sends bytes on a new connection, closes the sending side if asked to,
// and returns the last error message that comes back.
func say(t *testing.T, socket string, b []byte, closeWrite bool) wire.ErrorMessage {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(exchangeTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(b); err != nil {
		t.Fatal(err)
	}
	if closeWrite {
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	for {
		payload, err := wire.ReadFrame(conn, wire.MaxBrokerFrame, nil)
		if err != nil {
			t.Fatalf("no error message came: %v", err)
		}
		m, err := wire.Decode(wire.BrokerReplies, payload)
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := m.(wire.ErrorMessage); ok {
			return e
		}
	}
}

// R10 R11 R14: whatever a client sends that is not a proper request gets a
// typed error with advice, changes nothing, and disturbs nobody else.
func TestBadRequestsAreRefused(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	s := startSystem(t, harness.Options{})
	good := hello(t, wire.Version)
	after := func(b []byte) []byte { return append(bytes.Clone(good), b...) }
	oversized := binary.BigEndian.AppendUint32(nil, wire.MaxBrokerFrame+1)
	for name, c := range map[string]struct {
		bytes []byte
		code  wire.Code
	}{
		"truncated frame":    {after([]byte{0, 0, 1, 0, 0xa1}), wire.CodeFrameTruncated},
		"truncated length":   {after([]byte{0, 0}), wire.CodeFrameTruncated},
		"oversized length":   {after(oversized), wire.CodeFrameTooLarge},
		"largest length":     {after([]byte{0xff, 0xff, 0xff, 0xff}), wire.CodeFrameTooLarge},
		"empty frame":        {after([]byte{0, 0, 0, 0}), wire.CodeInvalidMessage},
		"garbage":            {after(frame("\xff\xff\xff garbage")), wire.CodeInvalidMessage},
		"duplicate keys":     {after(frame("\xa2\x64type\x64list\x64type\x64list")), wire.CodeInvalidMessage},
		"deep nesting":       {after(frame(strings.Repeat("\x81", 60_000) + "\x00")), wire.CodeInvalidMessage},
		"indefinite length":  {after(frame("\xbf\x64type\x6clistSessions\x62id\x01\xff")), wire.CodeInvalidMessage},
		"unknown type":       {after(frame("\xa2\x62id\x01\x64type\x64exec")), wire.CodeUnknownMessage},
		"unknown field":      {after(frame("\xa3\x62id\x01\x64argv\x80\x64type\x6clistSessions")), wire.CodeInvalidMessage},
		"wrong version":      {hello(t, 99), wire.CodeUnsupportedVersion},
		"no hello":           {message(t, wire.ListSessions{ID: 1}), wire.CodeHelloRequired},
		"unknown workspace":  {after(message(t, wire.Create{ID: 1, Workspace: "elsewhere"})), wire.CodeUnknownWorkspace},
		"unknown profile":    {after(message(t, wire.Create{ID: 1, Workspace: "project", Profile: "root"})), wire.CodeUnknownProfile},
		"argument in model":  {after(forged(t, wire.Create{ID: 1, Workspace: "project", Model: "provider/model-name"}, "provider/model-name", "--extension=/etc/rc")), wire.CodeInvalidArgument},
		"argument in id":     {after(forged(t, wire.Create{ID: 1, Workspace: "project", AgentSession: "ahelpa"}, "ahelpa", "--help")), wire.CodeInvalidArgument},
		"unknown session":    {after(message(t, wire.InspectSession{ID: 1, Session: "0123456789abcdef0123456789abcdef"})), wire.CodeUnknownSession},
		"another deployment": {after(message(t, wire.Describe{ID: 1, Deployment: "other"})), wire.CodeAdminOnly},
	} {
		t.Run(name, func(t *testing.T) {
			got := say(t, s.BrokerSocket(), c.bytes, true)
			if got.Code != c.code {
				t.Errorf("got %s (%s), want %s", got.Code, got.Message, c.code)
			}
			if got.Message == "" || got.Advice == "" {
				t.Errorf("the error says too little: %+v", got)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), exchangeTimeout)
	defer cancel()
	b, err := client.DialBroker(ctx, s.BrokerSocket())
	if err != nil {
		t.Fatalf("the broker does not answer any more: %v", err)
	}
	defer b.Close()
	sessions, err := b.List(ctx)
	if err != nil || len(sessions) != 0 {
		t.Errorf("sessions after the refusals: %v, %v", sessions, err)
	}
	if left, err := s.Leftovers(); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// R11: a user that the deployment does not name is refused, root included.
func TestOtherUsersAreRefused(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	s := startSystem(t, harness.Options{PeerUIDs: []uint32{harness.DefaultPeerUID}})
	ctx, cancel := context.WithTimeout(t.Context(), exchangeTimeout)
	defer cancel()
	b, err := client.DialBroker(ctx, s.BrokerSocket())
	if err == nil {
		_, err = b.List(ctx)
		b.Close()
	}
	if wire.CodeOf(err) != wire.CodePermissionDenied {
		t.Errorf("root, which is not registered, got %v", err)
	}
}

// brokerRun is a broker that is expected to refuse to start.
func brokerRun(t *testing.T, s *harness.System, uid uint32) (code int, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// By descriptor, because another user can't walk to the program.
	f, err := os.Open(s.Program("paseo-sandbox-broker"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.CommandContext(ctx, "/proc/self/fd/3", "--prefix", s.Prefix, "--listen")
	cmd.ExtraFiles = []*os.File{f}
	cmd.Dir = "/"
	var out bytes.Buffer
	cmd.Stderr = &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	err = cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("the broker did not refuse: %v\n%s", err, out.String())
	}
	return exit.ExitCode(), out.String()
}

// tree lists the prefix, to show that a refusal changed nothing.
func tree(t *testing.T, s *harness.System) string {
	t.Helper()
	out, err := exec.Command("find", s.Prefix, "-not", "-name", "broker.lock", "-not", "-path", s.Prefix).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines, "\n")
}

// R16 R17 R71: a broker that can't do its work says why, with a code, advice
// and an exit status of its own, and leaves no trace.
func TestBrokerRefusesToStart(t *testing.T) {
	rootonly.Test(t)
	wrongDigest := "sha256:" + strings.Repeat("0", 64)
	for name, c := range map[string]struct {
		config func(string) string
		uid    uint32
		code   string
		exit   int
	}{
		"not root":            {uid: 1000, code: "root_required", exit: 3},
		"unknown key":         {config: func(s string) string { return "surprise = true\n" + s }, code: "invalid_config", exit: 4},
		"not TOML":            {config: func(string) string { return "[[[" }, code: "invalid_config", exit: 4},
		"missing runsc":       {config: func(s string) string { return replaceKey(s, "runsc", "path", "/nonexistent/runsc") }, code: "runtime_missing", exit: 5},
		"wrong runsc digest":  {config: func(s string) string { return replaceKey(s, "runsc", "digest", wrongDigest) }, code: "artifact_digest_mismatch", exit: 5},
		"missing rootfs":      {config: func(s string) string { return replaceKey(s, "rootfs", "path", "/nonexistent/rootfs") }, code: "rootfs_missing", exit: 5},
		"wrong rootfs digest": {config: func(s string) string { return replaceKey(s, "rootfs", "digest", wrongDigest) }, code: "artifact_digest_mismatch", exit: 5},
		"missing bridge":      {config: func(s string) string { return replaceKey(s, "bridge", "path", "/nonexistent/bridge") }, code: "bridge_failed", exit: 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := harness.New(harness.Options{Bin: programs(t), BrokerConfig: c.config})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Discard()
			before := tree(t, s)
			code, stderr := brokerRun(t, s, c.uid)
			if code != c.exit || !strings.Contains(stderr, c.code) {
				t.Errorf("exit %d, want %d; want code %s in:\n%s", code, c.exit, c.code, stderr)
			}
			if after := tree(t, s); after != before {
				t.Errorf("the refusal changed files:\n%s\nwere:\n%s", after, before)
			}
		})
	}
}

// replaceKey sets a string key of a table in the configuration.
func replaceKey(config, table, key, value string) string {
	lines := strings.Split(config, "\n")
	in := ""
	for i, line := range lines {
		if strings.HasPrefix(line, "[") {
			in = strings.Trim(line, "[]")
		}
		if in == table && strings.HasPrefix(line, key+" =") {
			lines[i] = fmt.Sprintf("%s = %q", key, value)
		}
	}
	return strings.Join(lines, "\n")
}

// A broker that runs already keeps its sockets; one that was killed leaves a
// socket file that the next one replaces.
func TestSecondBrokerAndStaleSocket(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	s := startSystem(t, harness.Options{})
	code, stderr := brokerRun(t, s, 0)
	if code != 6 || !strings.Contains(stderr, "broker_already_running") {
		t.Errorf("exit %d:\n%s", code, stderr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.StopBroker(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.BrokerSocket()); err != nil {
		t.Fatalf("the killed broker left no socket to replace: %v", err)
	}
	_, err := client.DialBroker(ctx, s.BrokerSocket())
	if wire.CodeOf(err) != wire.CodeBrokerUnreachable {
		t.Errorf("a dead broker's socket gives %v", err)
	}
	if err := s.StartBroker(ctx); err != nil {
		t.Fatal(err)
	}
	b, err := client.DialBroker(ctx, s.BrokerSocket())
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
}

// R80: the operator's commands speak to a running broker, as tables and JSON.
func TestBrokerAdmin(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	s := startSmallSystem(t, harness.Options{Profiles: echoProfiles})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	_, _, info := startSession(ctx, t, s, client.CreateOptions{Profile: "stdout"})
	admin := func(args ...string) []byte {
		t.Helper()
		cmd := exec.CommandContext(ctx, s.Program("broker-admin"), append(args, "--prefix", s.Prefix)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("broker-admin %v: %v\n%s%s", args, err, out, stderr.String())
		}
		return out
	}
	for _, args := range [][]string{{"sessions"}, {"deployment", "show", harness.Deployment}, {"deployment", "list"}, {"doctor"}} {
		if table := admin(args...); len(bytes.TrimSpace(table)) == 0 {
			t.Errorf("broker-admin %v prints nothing", args)
		}
		if b := admin(append(args, "--json")...); !json.Valid(b) {
			t.Errorf("broker-admin %v --json prints %q", args, b)
		}
	}
	if b := admin("sessions"); !bytes.Contains(b, []byte(info.Session)) {
		t.Errorf("sessions does not list %s:\n%s", info.Session, b)
	}
}

// The person's command gives Pi's protocol on standard input and output.
func TestRunCommand(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	s := startSystem(t, harness.Options{Profiles: echoProfiles})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for name, c := range map[string]struct{ profile, in, want string }{
		"program": {"stdout", "one\ntwo", "one\ntwo"},
		"Pi":      {"pi", `{"type":"get_state","id":"q1"}` + "\n", `"sessionId"`},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(ctx, s.Program("paseo-sandbox"), "run", "--socket", s.BrokerSocket(), "--workspace", "project", "--profile", c.profile)
			cmd.Stdin = strings.NewReader(c.in)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, stderr.String())
			}
			if !strings.Contains(string(out), c.want) {
				t.Errorf("got %q\n%s", out, stderr.String())
			}
		})
	}
	if left, err := filepath.Glob(filepath.Join(s.Prefix, "var", "spool", "*")); err != nil || len(left) != 0 {
		t.Errorf("run left %v, %v", left, err)
	}
}
