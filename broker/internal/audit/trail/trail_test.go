package trail

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/audit"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"github.com/hashicorp/go-hclog"
)

var sample = audit.Entry{
	Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), UID: 1000, GID: 100, PID: 4242, Deployment: "home",
	Operation: "create", Session: strings.Repeat("0f", 16), Decision: audit.Allow, Code: "ok",
	Workspace: "project-a", Profile: "pi", Duration: 1234 * time.Microsecond,
}

func numbered(n int) audit.Entry {
	e := sample
	e.Session, e.Changed = fmt.Sprint("n", n), true
	return e
}

func folder(t *testing.T) string {
	t.Helper()
	rootonly.Test(t)
	dir, err := os.MkdirTemp("", "trail-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func reader(t *testing.T, path string) *Reader {
	t.Helper()
	r, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// all reads what there is: sessions of entries, "!" and the text of what is
// broken.
func all(t *testing.T, r *Reader) string {
	t.Helper()
	var got []string
	for {
		l, err := r.Next()
		if err == io.EOF {
			return strings.Join(got, " ")
		}
		if err != nil {
			t.Fatal(err)
		}
		if l.Err != nil {
			got = append(got, "!"+string(l.Text))
			continue
		}
		got = append(got, l.Entry.Session)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func lineOf(n int) string { return string(numbered(n).Append(nil)) }

// R19: only lines as they are written are entries, to the byte.
func TestParse(t *testing.T) {
	text := string(sample.Append(nil))
	e, err := Parse([]byte(text))
	if err != nil || !reflect.DeepEqual(e, sample) {
		t.Errorf("got %+v, %v", e, err)
	}
	for name, bad := range map[string]string{
		"nothing": "", "newline": "\n", "two lines": text + text, "cut off": text[:len(text)/2], "space": strings.Replace(text, ":", ": ", 1),
		"other key": strings.Replace(text, "code", "kode", 1), "key in capitals": strings.Replace(text, `"code"`, `"CODE"`, 1),
		"key twice": strings.Replace(text, `"code":`, `"code":"ok","code":`, 1), "key too many": strings.Replace(text, `"code":`, `"evil":1,"code":`, 1),
		"key missing": strings.Replace(text, `"code":"ok",`, "", 1), "other order": strings.Replace(text, `"decision":"allow","code":"ok"`, `"code":"ok","decision":"allow"`, 1),
		"other decision": strings.Replace(text, "allow", "maybe", 1), "escape": strings.Replace(text, "home", `h\u006fme`, 1), "space in a text": strings.Replace(text, "home", "ho me", 1),
		"other time zone": strings.Replace(text, "Z", "+00:00", 1), "no time": strings.Replace(text, "2026", "0", 1), "null": strings.Replace(text, `"home"`, "null", 1),
		"negative uid": strings.Replace(text, "1000", "-1", 1), "huge uid": strings.Replace(text, "1000", "4294967296", 1), "fraction": strings.Replace(text, "1234", "1234.0", 1),
		"negative duration": strings.Replace(text, "1234", "-1234", 1), "overflow": strings.Replace(text, "1234", "9223372036854775807", 1),
		"trailing text": strings.TrimSpace(text) + " ", "long": strings.Repeat(" ", 2000) + text, "list": "[" + strings.TrimSpace(text) + "]",
	} {
		if e, err := Parse([]byte(bad)); err == nil {
			t.Errorf("%s: %q is taken as %+v", name, bad, e)
		}
	}
}

// FuzzParse: what is taken is what is written, byte for byte.
func FuzzParse(f *testing.F) {
	f.Add(sample.Append(nil))
	f.Add(audit.Entry{Decision: audit.Event, Count: 3}.Append(nil))
	f.Add([]byte(`{"time":"2026-01-02T03:04:05.000000006Z"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := Parse(text)
		if err != nil {
			return
		}
		if want := append(bytes.TrimSuffix(bytes.Clone(text), []byte("\n")), '\n'); !bytes.Equal(e.Append(nil), want) {
			t.Errorf("%q is taken as %+v", text, e)
		}
	})
}

// FuzzWritten: whatever an entry's texts are, it is one line, and is read as
// what was written.
func FuzzWritten(f *testing.F) {
	f.Add("home", "create", "ok", "project", "pi", uint32(7), int64(8))
	f.Add("a\nb", `","decision":"allow`, "\u2028", "\x00", "\xff", uint32(0), int64(0))
	f.Fuzz(func(t *testing.T, deployment, operation, code, workspace, profile string, uid uint32, micros int64) {
		e := audit.Entry{
			Time: sample.Time, UID: uid, Deployment: deployment, Operation: operation, Decision: audit.Deny, Code: code,
			Workspace: workspace, Profile: profile, Duration: time.Duration(micros&(1<<40-1)) * time.Microsecond,
		}
		text := e.Append(nil)
		got, err := Parse(text)
		if err != nil || len(text) > audit.MaxLine || bytes.Count(text, []byte("\n")) != 1 || !bytes.Equal(got.Append(nil), text) {
			t.Errorf("%+v is written as %q and read as %+v, %v", e, text, got, err)
		}
	})
}

// R80: the files are read from the oldest to the youngest; what is broken is
// shown where it stands, whatever it holds.
func TestHistory(t *testing.T) {
	path := folder(t) + "/audit.log"
	write(t, path+".3", lineOf(1)+"\x00\x1b[2Jrubbish\n"+lineOf(2))
	write(t, path+".2", lineOf(3)+"cut of")
	write(t, path, lineOf(4)+strings.Repeat("x", 3000)+"\n"+lineOf(5)+strings.Repeat("y", audit.MaxLine)+"\n"+lineOf(6)+"\n"+lineOf(7)+`{"time`)
	r := reader(t, path)
	want := "n1 !\x00\x1b[2Jrubbish n2 n3 !cut of n4 !" + strings.Repeat("x", audit.MaxLine) + " n5 !" + strings.Repeat("y", audit.MaxLine) + " n6 ! n7"
	if got := all(t, r); got != want {
		t.Errorf("got  %.3000q\nwant %.3000q", got, want)
	}
	if l, ok := r.Rest(); !ok || string(l.Text) != `{"time` || l.Err == nil {
		t.Errorf("the rest is %q, %v", l.Text, ok)
	}
}

// R80: one that is begun before there is a file finds it.
func TestNothingYet(t *testing.T) {
	path := folder(t) + "/audit.log"
	r := reader(t, path)
	if got := all(t, r); got != "" {
		t.Errorf("got %q", got)
	}
	write(t, path, lineOf(1))
	if got := all(t, r); got != "n1" {
		t.Errorf("got %q", got)
	}
}

// R80: a line is told when it is whole, and files that are removed unread are
// a gap that is told.
func TestGrowingAndGone(t *testing.T) {
	path := folder(t) + "/audit.log"
	one := lineOf(1)
	write(t, path, one[:30])
	r := reader(t, path)
	if got := all(t, r); got != "" {
		t.Errorf("got %q", got)
	}
	write(t, path, one[30:]+lineOf(2))
	if got := all(t, r); got != "n1 n2" {
		t.Errorf("got %q", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := all(t, r); got != "" {
		t.Errorf("got %q", got)
	}
	write(t, path, lineOf(3))
	l, err := r.Next()
	if !errors.Is(l.Err, ErrLost) || err != nil {
		t.Errorf("got %+v, %v", l, err)
	}
	if got := all(t, r); got != "n3" {
		t.Errorf("got %q", got)
	}
}

// R80: a reader that follows a writer gets each line once, in order, though
// files are renamed for each of them.
func TestFollowing(t *testing.T) {
	path := folder(t) + "/audit.log"
	trail, err := audit.Open(registry.Audit{File: path, MaxSize: 300, Files: 40}, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	const n, ahead = 1500, 30
	// The writer stays so near that no file is removed unread.
	tokens := make(chan struct{}, ahead)
	done := make(chan struct{})
	t.Cleanup(func() {
		close(done)
		trail.Close()
	})
	go func() {
		for i := range n {
			select {
			case tokens <- struct{}{}:
			case <-done:
				return
			}
			trail.Record(numbered(i))
		}
	}()
	r := reader(t, path)
	deadline := time.Now().Add(2 * time.Minute)
	for i := 0; i < n; {
		l, err := r.Next()
		if err == io.EOF && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
			continue
		}
		if want := fmt.Sprint("n", i); err != nil || l.Err != nil || l.Entry.Session != want {
			t.Fatalf("got %q, %v, %v, want %s", l.Text, l.Err, err, want)
		}
		<-tokens
		i++
	}
	if got := all(t, r); got != "" {
		t.Errorf("and then %q", got)
	}
}
