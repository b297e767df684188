package audit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// logged is a log that a test reads.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newLog() (*logged, hclog.Logger) {
	l := &logged{}
	return l, hclog.New(&hclog.LoggerOptions{Output: l})
}

// folder is one that root alone can change.
func folder(t *testing.T) string {
	t.Helper()
	rootonly.Test(t)
	dir, err := os.MkdirTemp("", "audit-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func open(t *testing.T, c registry.Audit) (*Trail, *logged) {
	t.Helper()
	l, log := newLog()
	trail, err := Open(c, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := trail.Close(); err != nil {
			t.Error(err)
		}
	})
	return trail, l
}

func read(t *testing.T, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.SplitAfter(strings.TrimSuffix(string(b), "\n"), "\n")
}

// numbered is an entry that is told from others by its number.
func numbered(n int) Entry {
	return Entry{Operation: "test", Session: fmt.Sprint("n", n), Decision: Allow, Code: "ok", Changed: true}
}

// R19: without a file, entries are lines of the log.
func TestToLog(t *testing.T) {
	trail, log := open(t, registry.Audit{})
	trail.Record(Entry{UID: 7, Deployment: "home", Operation: "create", Workspace: "w"}.Decided(&wire.Error{Code: wire.CodeRuntimeFailed}))
	if want := `audit: peer_uid=7 peer_gid=0 peer_pid=0 deployment=home operation=create session="" decision=failed code=runtime_failed workspace=w micros=0` + "\n"; !strings.HasSuffix(log.String(), want) {
		t.Errorf("got %q, want %q", log, want)
	}
	if err := trail.Available(); err != nil {
		t.Error(err)
	}
}

// R19: a user who asks for too much can't fill the disk; nothing is dropped
// uncounted, what changed something is not dropped, and others are not touched.
func TestFlood(t *testing.T) {
	trail, log := open(t, registry.Audit{})
	const n = 3 * burst
	for range n {
		trail.Record(Entry{UID: 1, Operation: "flood", Decision: Deny})
		trail.Record(Entry{UID: 1, Operation: "change", Decision: Allow, Changed: true})
		trail.Happened("event", "home", "", "")
	}
	trail.Record(Entry{UID: 2, Operation: "other", Decision: Deny})
	written := strings.Count(log.String(), "operation=flood")
	if written < burst || written == n {
		t.Errorf("%d of %d were written, want %d and few more", written, n, burst)
	}
	for _, operation := range []string{"change", "event"} {
		if got := strings.Count(log.String(), "operation="+operation); got != n {
			t.Errorf("%d of %d of %s were written", got, n, operation)
		}
	}
	if !strings.Contains(log.String(), "operation=other") {
		t.Error("another user's entry is missing")
	}
	awaitDropped(t, log, 1, n-written)
}

// awaitDropped waits until so many entries of a user are counted as dropped.
func awaitDropped(t *testing.T, log *logged, uid uint32, want int) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		sum := 0
		for line := range strings.SplitSeq(log.String(), "\n") {
			_, count, ok := strings.Cut(line, "count=")
			if ok && strings.Contains(line, "operation=dropped") && strings.Contains(line, fmt.Sprintf("peer_uid=%d ", uid)) {
				var n int
				fmt.Sscan(count, &n)
				sum += n
			}
		}
		if sum == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d are counted as dropped, want %d", sum, want)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// What many users do costs bounded memory, and what is dropped is counted also
// when the trail is closed at once.
func TestManyUsers(t *testing.T) {
	log, hlog := newLog()
	trail := ToLog(hlog)
	const n = 20000
	for uid := range n {
		trail.Record(Entry{UID: uint32(uid), Operation: "flood", Decision: Deny})
	}
	if len(trail.budgets) > maxUsers+1 {
		t.Errorf("%d users are remembered", len(trail.budgets))
	}
	if err := trail.Close(); err != nil {
		t.Error(err)
	}
	written := strings.Count(log.String(), "operation=flood")
	if written < maxUsers || written > n/2 {
		t.Errorf("%d of %d are written", written, n)
	}
	if trail.counting != nil {
		t.Error("what was dropped is still to be counted")
	}
	awaitDropped(t, log, nobody, n-written)
	trail.forget(time.Now().Add(time.Hour))
	if len(trail.budgets) != 0 {
		t.Errorf("%d users are remembered for ever", len(trail.budgets))
	}
}

// R19: many at once: each is one line, in files of bounded size and number.
func TestFile(t *testing.T) {
	path := folder(t) + "/log/audit.log"
	c := registry.Audit{File: path, MaxSize: 64 << 10, Files: 50}
	trail, log := open(t, c)
	const each, writers = 300, 16
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				trail.Record(numbered(w*each + i))
			}
		})
	}
	wg.Wait()
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) < 3 || len(files) > c.Files {
		t.Fatalf("there are %q, %v", files, err)
	}
	seen := make(map[string]bool)
	for _, name := range files {
		st, err := os.Stat(name)
		if err != nil || st.Mode() != 0o600 || st.Size() > int64(c.MaxSize) {
			t.Errorf("%s: %v, %v", name, st, err)
		}
		for _, line := range read(t, name) {
			if !strings.HasPrefix(line, `{"time":"`) || !strings.HasSuffix(strings.TrimSpace(line), "}") {
				t.Errorf("%s has the line %q", name, line)
			}
			_, rest, _ := strings.Cut(line, `"session":"`)
			number, _, _ := strings.Cut(rest, `"`)
			seen[number] = true
		}
	}
	if len(seen) != each*writers || log.String() != "" {
		t.Errorf("%d of %d are there; the log says %q", len(seen), each*writers, log)
	}
}

// R19: only so many files are kept; one that is missing in between, after a
// crash in the middle of renaming, does no harm.
func TestRotation(t *testing.T) {
	path := folder(t) + "/audit.log"
	trail, log := open(t, registry.Audit{File: path, MaxSize: 200, Files: 3})
	for i := range 9 {
		if i == 6 {
			if err := os.Remove(path + ".1"); err != nil {
				t.Fatal(err)
			}
		}
		trail.Record(numbered(i))
	}
	for name, want := range map[string]string{"": "n8", ".1": "n7", ".2": "n6"} {
		if lines := read(t, path+name); len(lines) != 1 || !strings.Contains(lines[0], `"`+want+`"`) {
			t.Errorf("audit.log%s has %q, want %s", name, lines, want)
		}
	}
	if files, err := filepath.Glob(path + "*"); err != nil || len(files) != 3 || log.String() != "" {
		t.Errorf("there are %q, %v; the log says %q", files, err, log)
	}
}
