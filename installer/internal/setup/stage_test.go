package setup

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newSetup(t *testing.T) *Setup {
	t.Helper()
	s := &Setup{Cache: filepath.Join(t.TempDir(), "cache [with] odd * bytes"), Progress: NewProgress(io.Discard)}
	unlock, err := s.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(unlock)
	return s
}

// fake is a recipe of three stages that records which of them ran.
type fake struct {
	Recipe
	ran  []string
	fail string // the stage that fails after leaving something behind
	err  error
}

func newFake() *fake {
	f := &fake{Recipe: Recipe{Name: "fake", Key: "k1", Payload: "tree"}, err: errors.New("the fake stage fails")}
	for _, name := range []string{"one", "two", "three"} {
		f.Stages = append(f.Stages, Stage{name, func(_ context.Context, b *Bench, out string) error {
			f.ran = append(f.ran, name)
			if left, err := os.ReadDir(out); err != nil || len(left) > 0 {
				return errors.New("the stage did not start with an empty folder")
			}
			if err := os.Mkdir(filepath.Join(out, "tree"), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(out, "tree", name), []byte(name), 0o644); err != nil {
				return err
			}
			if f.fail == name {
				return f.err
			}
			if name == "three" {
				_, err := os.Stat(filepath.Join(b.Output("one"), "tree", "one"))
				return err
			}
			return nil
		}})
	}
	return f
}

func (f *fake) expect(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(f.ran, want) {
		t.Errorf("the stages %v ran, want %v", f.ran, want)
	}
	f.ran = nil
}

// A finished stage is not redone and a half-built one starts from nothing.
func TestStagesResume(t *testing.T) {
	s, f := newSetup(t), newFake()
	f.fail = "two"
	if _, err := s.runStages(t.Context(), &f.Recipe); !errors.Is(err, f.err) {
		t.Fatalf("got %v", err)
	}
	f.expect(t, "one", "two")
	f.fail = ""
	dir, err := s.runStages(t.Context(), &f.Recipe)
	if err != nil {
		t.Fatal(err)
	}
	f.expect(t, "two", "three")
	if data, err := os.ReadFile(filepath.Join(dir, "three", "tree", "three")); err != nil || string(data) != "three" {
		t.Errorf("got %q, %v", data, err)
	}
}

// Another key, or force, keeps nothing of what was made before.
func TestStagesStartAnew(t *testing.T) {
	s, f := newSetup(t), newFake()
	f.fail = "three"
	_, _ = s.runStages(t.Context(), &f.Recipe)
	f.expect(t, "one", "two", "three")
	f.Key = "k2"
	_, _ = s.runStages(t.Context(), &f.Recipe)
	f.expect(t, "one", "two", "three")
	if _, err := os.Stat(filepath.Join(s.Cache, "work", "fake", "k1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the work for the other key is still there: %v", err)
	}
	s.Force = true
	_, _ = s.runStages(t.Context(), &f.Recipe)
	f.expect(t, "one", "two", "three")
}

// No stage starts once the run is cancelled.
func TestStagesCancelled(t *testing.T) {
	s, f := newSetup(t), newFake()
	ctx, cancel := context.WithCancel(t.Context())
	f.Stages[1].Run = func(context.Context, *Bench, string) error { cancel(); return nil }
	if _, err := s.runStages(ctx, &f.Recipe); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	f.expect(t, "one")
}

// When one recipe fails the other is stopped, and the failure is what is told.
func TestBuildStopsTheOthers(t *testing.T) {
	s, f, slow := newSetup(t), newFake(), newFake()
	f.fail, slow.Name = "one", "slow"
	slow.Stages[0].Run = func(ctx context.Context, _ *Bench, _ string) error {
		<-ctx.Done()
		return ctx.Err()
	}
	if _, err := s.Build(t.Context(), []*Recipe{&slow.Recipe, &f.Recipe}); !errors.Is(err, f.err) {
		t.Fatalf("got %v", err)
	}
}

// Too little space is found before anything starts.
func TestBuildNeedsSpace(t *testing.T) {
	s, f := newSetup(t), newFake()
	f.Space = 1 << 62
	_, err := s.Build(t.Context(), []*Recipe{&f.Recipe})
	wantCode(t, err, CodeDiskSpace)
	f.expect(t)
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var e interface {
		ErrorCode() string
		ErrorAdvice() string
	}
	if !errors.As(err, &e) || e.ErrorCode() != code || e.ErrorAdvice() == "" {
		t.Fatalf("got %v, want code %s with advice", err, code)
	}
}

// Two set-ups do not work in one cache at the same time, and the one that waits
// can be interrupted.
func TestLock(t *testing.T) {
	s := newSetup(t)
	var said bytes.Buffer
	other := &Setup{Cache: s.Cache, Progress: NewProgress(&said)}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := other.Open(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	if !strings.Contains(said.String(), "another set-up has this cache") {
		t.Errorf("it said %q", said.String())
	}
}

// What is missing is named, with the advice of the tool.
func TestInstallMissing(t *testing.T) {
	s := newSetup(t)
	if err := s.InstallMissing(t.Context(), []Tool{{Name: "sh"}, {Name: "/proc/self/exe"}}); err != nil {
		t.Fatal(err)
	}
	err := s.InstallMissing(t.Context(), []Tool{{Name: "no-such-tool", Advice: "Get it."}, {Name: "/no/such/file"}})
	wantCode(t, err, CodeMissing)
	if !strings.Contains(err.Error(), "no-such-tool, /no/such/file") {
		t.Errorf("it says %q", err)
	}
}

// The tools of several recipes are listed once each.
func TestTools(t *testing.T) {
	got := Tools([]*Recipe{{Needs: []Tool{{Name: "b"}, {Name: "a"}}}, {Needs: []Tool{{Name: "b"}}}})
	if len(got) != 2 || got[0].Name != "a" || got[1].Name != "b" {
		t.Errorf("got %v", got)
	}
}

// A long stage says that it is alive, with a detail.
func TestHeartbeat(t *testing.T) {
	var said lines
	p := NewProgress(&said)
	err := p.During("slow", func() string { return "the detail" }, func() error {
		deadline := time.Now().Add(10 * time.Second)
		for !said.contains("the detail") && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
		}
		return nil
	})
	if err != nil || !said.contains("the detail") || !said.contains("slow: done") {
		t.Errorf("it said %q, %v", said.text, err)
	}
}

// Output of another program can't drive the terminal.
func TestPrintable(t *testing.T) {
	if got := printable("a\x1b[2J\rb\x00ü" + strings.Repeat("x", 200)); got != "a[2Jbü"+strings.Repeat("x", 94)+"…" {
		t.Errorf("got %q", got)
	}
}

// lines collects what is written and may be read meanwhile.
type lines struct {
	mu   sync.Mutex
	text string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text += string(p)
	return len(p), nil
}

func (l *lines) contains(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text, part)
}
