package app_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/rig"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// privateMounts gives the test's goroutine a mount namespace of its own, which
// ends with it whatever happens: the thread is never given back.
func privateMounts(t *testing.T) {
	t.Helper()
	rootonly.Test(t)
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
}

// mountTmpfs makes a folder that holds so many bytes.
func mountTmpfs(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("spool", dir, "tmpfs", 0, fmt.Sprint("size=", size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmount(t, dir) })
	return dir
}

// mountExt4 makes a folder on a file system of so many bytes.
func mountExt4(t *testing.T, size int64) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, size); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-m0", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	t.Cleanup(func() { unmount(t, dir) })
	return dir
}

func unmount(t *testing.T, dir string) {
	if err := unix.Unmount(dir, 0); err != nil {
		t.Errorf("unmount %s: %v", dir, err)
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	}
}

// fill takes all of the disk's room; remove the file to give it back.
func fill(t *testing.T, dir string) (path string) {
	t.Helper()
	path = filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; size /= 2 {
		b := make([]byte, size)
		for err = nil; err == nil; {
			_, err = f.Write(b)
		}
	}
	return path
}

// R47, R44, R45: on a full disk output waits, visibly and with its reason; an
// ack, an abort and the answer to a dialog still work, what does not fit is
// refused as a whole; and output goes on by itself when there is room.
func TestFullDisk(t *testing.T) {
	for name, mount := range map[string]func(*testing.T) string{
		"tmpfs": func(t *testing.T) string { return mountTmpfs(t, 12<<20) },
		"ext4":  func(t *testing.T) string { return mountExt4(t, 24<<20) },
	} {
		t.Run(name, func(t *testing.T) {
			privateMounts(t)
			fullDisk(t, mount(t))
		})
	}
}

func fullDisk(t *testing.T, dir string) {
	r := rig.New(t, rig.Options{Framing: wire.FramingPi, MaxRecord: 1 << 20, SpoolLimit: 64 << 20, Dir: dir})
	b := r.Start()
	c := r.Writer()
	if _, err := r.AgentStdout.WriteString(dialog("asked", "confirm")); err != nil {
		t.Fatal(err)
	}
	if rec := c.Next(); string(rec.Data) != dialog("asked", "confirm") {
		t.Fatalf("record %+v", rec)
	}
	filler := fill(t, dir)
	const last = 1500 // 15 MB
	written := make(chan error, 1)
	go func() { written <- writeNumbered(r.AgentStdout, 2, last) }()
	full := func(c *rig.Client) {
		t.Helper()
		eventually(t, "the disk to be full", func() bool {
			st := c.Inspect()
			return st.OutputStalled && st.StallReason == wire.StallStorage
		})
	}
	full(c)
	// A bridge that starts on a full disk is no worse.
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	r.Start()
	c = r.Writer()
	full(c)
	_, e := c.Input("big", fmt.Appendf(nil, `{"type":"big","text":"%s"}`+"\n", bytes.Repeat([]byte("b"), 4<<20)))
	wantCode(t, e, wire.CodeStorageFull)
	if st := c.Inspect(); st.InputAccepted != 0 {
		t.Fatalf("%d bytes of a refused input were accepted", st.InputAccepted)
	}
	abort, answer := `{"type":"abort"}`+"\n", answerTo("asked")
	for id, data := range map[string]string{"abort": abort, "answer": answer} {
		if _, e := c.Input(id, []byte(data)); e != nil {
			t.Fatalf("%s on a full disk: %v", id, e)
		}
	}
	got := make([]byte, len(abort)+len(answer))
	if _, err := io.ReadFull(r.AgentStdin, got); err != nil {
		t.Fatal(err)
	}
	if s := string(got); s != abort+answer && s != answer+abort {
		t.Fatalf("the agent got %q", s)
	}
	if _, e := c.Ack(1); e != nil {
		t.Fatalf("an ack on a full disk: %v", e)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if rec := c.Next(); rec.Sequence != 1 {
		t.Fatalf("record %d", rec.Sequence)
	}
	for next := uint64(2); next <= last; next++ {
		rec := c.Next()
		if rec.Sequence != next || !bytes.Equal(rec.Data, numbered(next)) {
			t.Fatalf("record %d holds %.20q, want line %d", rec.Sequence, rec.Data, next)
		}
		if next%50 == 0 {
			if _, e := c.Ack(next); e != nil {
				t.Fatal(e)
			}
		}
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	eventually(t, "the stall to end", func() bool { return !c.Inspect().OutputStalled })
	if e := c.CloseInput(); e != nil {
		t.Fatal(e)
	}
}

// R47, R48: wherever the disk becomes full, whatever was not refused happens,
// once there is room, exactly once.
func TestDiskFullAtEveryStep(t *testing.T) {
	privateMounts(t)
	step := 24 << 10
	if os.Getenv(checksVariable) != "" {
		step = 4 << 10
	}
	accepted, refused := 0, 0
	for size := 16 << 10; size < 1<<20; size += step {
		dir := mountTmpfs(t, size)
		r := rig.New(t, rig.Options{Framing: wire.FramingPi, MaxRecord: 1 << 20, SpoolLimit: 32 << 20, Dir: dir})
		want := fullAt(t, r, &accepted, &refused)
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT, fmt.Sprint("size=", 64<<20)); err != nil {
			t.Fatal(err)
		}
		b := r.Start()
		c := r.Writer()
		for next := uint64(1); next <= 40; next++ {
			if rec := c.Next(); rec.Sequence != next || !bytes.Equal(rec.Data, numbered(next)) {
				t.Fatalf("size %d: record %d holds %.20q, want line %d", size, rec.Sequence, rec.Data, next)
			}
		}
		read := make(chan []byte, 1)
		go func() { read <- drainAgent(r.AgentStdin) }()
		if e := c.CloseInput(); e != nil {
			t.Fatal(e)
		}
		if got := <-read; string(got) != want {
			t.Fatalf("size %d: the agent got %d bytes, %d were accepted", size, len(got), len(want))
		}
		if err := b.Stop(); err != nil {
			t.Fatal(err)
		}
		r.Drop()
	}
	t.Logf("%d inputs accepted, %d refused", accepted, refused)
	if accepted == 0 || refused == 0 {
		t.Error("no disk was full in the middle")
	}
}

// fullAt lets a session run into its disk's end and returns the input that was
// accepted. The bridge is stopped when it is done.
func fullAt(t *testing.T, r *rig.Rig, accepted, refused *int) (input string) {
	t.Helper()
	go func() { _ = writeNumbered(r.AgentStdout, 1, 40) }() // 400 kB, which a pipe may hold or not
	b := r.Launch()
	select {
	case <-b.Ready:
	case e := <-b.Failure:
		if err := b.Stop(); err == nil || e.Message == "" {
			t.Errorf("the bridge said %+v and ended with %v", e, err)
		}
		return ""
	}
	c := r.Connect()
	if e := c.TryAttach(wire.Attach{Mode: wire.ModeWriter, From: wire.FromOldest}); e != nil {
		wantCode(t, e, wire.CodeStorageFull)
		if err := b.Stop(); err != nil {
			t.Fatal(err)
		}
		return ""
	}
	for i := range 20 {
		// One that has no room may leave a part of itself behind; a small one
		// follows.
		length := 50
		if i%2 == 1 {
			length = i * 4000
		}
		data := fmt.Sprintf(`{"type":"%d","text":"%s"}`+"\n", i, bytes.Repeat([]byte("i"), length))
		switch _, e := c.Input(fmt.Sprint(i), []byte(data)); {
		case e == nil:
			input += data
			*accepted++
		case e.Code == wire.CodeStorageFull:
			*refused++
		default:
			t.Fatal(e)
		}
	}
	c.Close()
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	return input
}

// R48: an index cut at any byte, which only a host's crash can do, gives the
// same sequences the same bytes again.
func TestCutIndex(t *testing.T) {
	r := rig.New(t, rig.Options{})
	b := r.Start()
	c := r.Writer()
	if err := writeNumbered(r.AgentStdout, 1, 20); err != nil {
		t.Fatal(err)
	}
	expectNumbered(t, c, 1, 20)
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	index := filepath.Join(r.Dir, "index")
	for cut := range 70 {
		size := int64(4096 + 20*32 - cut)
		if err := os.Truncate(index, size); err != nil {
			t.Fatal(err)
		}
		b := r.Start()
		c := r.Observer(wire.FromOldest)
		expectNumbered(t, c, 1, 20)
		c.Close()
		if err := b.Stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// R48: what can't be read any more ends a client's connection with words, and
// hurts nobody else.
func TestUnreadableSpool(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.Start()
	w := r.Writer()
	if err := writeNumbered(r.AgentStdout, 1, 20); err != nil {
		t.Fatal(err)
	}
	expectNumbered(t, w, 1, 20)
	if err := os.Truncate(filepath.Join(r.Dir, "stdout"), 0); err != nil {
		t.Fatal(err)
	}
	o := r.Observer(wire.FromOldest)
	var err error
	for err == nil {
		err = o.Step()
	}
	e, ok := err.(*wire.Error)
	if !ok {
		t.Fatalf("the observer learned %v", err)
	}
	wantCode(t, e, wire.CodeInternal)
	if len(o.Records) != 0 {
		t.Fatalf("it got %d records of a file that is gone", len(o.Records))
	}
	if _, e := w.Input("i", []byte("i\n")); e != nil {
		t.Fatal(e)
	}
}
