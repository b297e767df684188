package audit

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// R11, R19: a place that others could have a hand in is refused, and nothing
// that was there is changed.
func TestUntrustedPlaces(t *testing.T) {
	for name, set := range map[string]func(dir string) error{
		"symbolic link":         func(d string) error { return os.Symlink(d+"/victim", d+"/a/audit.log") },
		"dangling link":         func(d string) error { return os.Symlink(d+"/none", d+"/a/audit.log") },
		"hard link":             func(d string) error { return os.Link(d+"/victim", d+"/a/audit.log") },
		"named pipe":            func(d string) error { return unix.Mkfifo(d+"/a/audit.log", 0o600) },
		"device":                func(d string) error { return unix.Mknod(d+"/a/audit.log", unix.S_IFCHR|0o600, 1<<8|3) },
		"folder":                func(d string) error { return os.Mkdir(d+"/a/audit.log", 0o700) },
		"another's file":        func(d string) error { return errors.Join(touch(d+"/a/audit.log"), os.Chown(d+"/a/audit.log", 1000, 0)) },
		"readable by others":    func(d string) error { return errors.Join(touch(d+"/a/audit.log"), os.Chmod(d+"/a/audit.log", 0o644)) },
		"another's folder":      func(d string) error { return os.Chown(d+"/a", 1000, 0) },
		"folder others write":   func(d string) error { return os.Chmod(d+"/a", 0o777) },
		"link to a folder":      func(d string) error { return errors.Join(os.Rename(d+"/a", d+"/b"), os.Symlink(d+"/b", d+"/a")) },
		"no folder above":       func(d string) error { return errors.Join(os.Remove(d+"/a"), os.Remove(d+"/victim"), os.Remove(d)) },
		"folder above of other": func(d string) error { return os.Chown(d, 1000, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t)
			if err := errors.Join(os.Mkdir(dir+"/a", 0o700), os.WriteFile(dir+"/victim", []byte("as it was"), 0o600), set(dir)); err != nil {
				t.Fatal(err)
			}
			_, log := newLog()
			trail, err := Open(registry.Audit{File: dir + "/a/audit.log", MaxSize: 1 << 20, Files: 2}, log)
			if err == nil {
				trail.Record(numbered(1))
				trail.Close()
			}
			if wire.CodeOf(err) != wire.CodeInvalidConfig {
				t.Errorf("got %v", err)
			}
			if b, err := os.ReadFile(dir + "/victim"); err == nil && string(b) != "as it was" {
				t.Errorf("the victim is now %q", b)
			}
			if _, err := os.Lstat(dir + "/none"); err == nil {
				t.Error("the dangling link's target was made")
			}
		})
	}
}

func touch(path string) error { return os.WriteFile(path, nil, 0o600) }

// R19: what a crash cut off stays one broken line; nothing is lost after it.
func TestCutOff(t *testing.T) {
	path := folder(t) + "/audit.log"
	whole := numbered(0).Append(nil)
	cut := append(bytes.Clone(whole), whole[:20]...)
	if err := os.WriteFile(path, cut, 0o600); err != nil {
		t.Fatal(err)
	}
	trail, _ := open(t, registry.Audit{File: path, MaxSize: 1 << 20, Files: 2})
	trail.Record(numbered(1))
	trail.Record(numbered(2))
	lines := read(t, path)
	if len(lines) != 4 || lines[0] != string(whole) || lines[1] != string(whole[:20])+"\n" || !strings.Contains(lines[2], `"n1"`) || !strings.Contains(lines[3], `"n2"`) {
		t.Errorf("got %q", lines)
	}
}

// R19: a file that someone moved away or removed is begun anew, not written on
// where nobody sees it; one put in its place by a link is not followed.
func TestMovedAway(t *testing.T) {
	dir := folder(t)
	path := dir + "/audit.log"
	trail, log := open(t, registry.Audit{File: path, MaxSize: 1 << 20, Files: 2})
	trail.Record(numbered(0))
	if err := os.Rename(path, dir+"/moved"); err != nil {
		t.Fatal(err)
	}
	trail.Record(numbered(1))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	trail.Record(numbered(2))
	if a, b := read(t, dir+"/moved"), read(t, path); len(a) != 1 || len(b) != 1 || !strings.Contains(b[0], `"n2"`) {
		t.Errorf("got %q and %q", a, b)
	}
	if err := errors.Join(os.Remove(path), os.Symlink(filepath.Base("moved"), path)); err != nil {
		t.Fatal(err)
	}
	trail.Record(numbered(3))
	if a := read(t, dir+"/moved"); len(a) != 1 || !strings.Contains(log.String(), "audit_unwritten") || !strings.Contains(log.String(), "session=n3") {
		t.Errorf("got %q, and the log says %q", a, log)
	}
	if err := trail.Available(); wire.CodeOf(err) != wire.CodeAuditUnavailable {
		t.Errorf("got %v", err)
	}
}

// R19: on a full disk no entry goes unrecorded: those that are not in the file
// are in the log, and counted in the file when there is room again.
func TestFullDisk(t *testing.T) {
	dir := folder(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64k,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	path := dir + "/audit.log"
	trail, log := open(t, registry.Audit{File: path, MaxSize: 1 << 20, Files: 2})
	trail.Record(numbered(0))
	fill(t, dir+"/filler")
	n := 1
	for ; trail.Available() == nil; n++ {
		trail.Record(numbered(n))
	}
	trail.Record(numbered(n))
	n++
	missing := strings.Count(log.String(), "audit_unwritten")
	if missing == 0 || !strings.Contains(log.String(), "no space left on device") {
		t.Errorf("the log says %q", log)
	}
	if err := os.Remove(dir + "/filler"); err != nil {
		t.Fatal(err)
	}
	if err := trail.Available(); err != nil {
		t.Error(err)
	}
	trail.Record(numbered(n))
	n++
	text := strings.Join(read(t, path), "")
	for i := range n {
		number := numbered(i).Session
		if !strings.Contains(text, `"session":"`+number+`","decision":"allow","code":"ok","micros":0}`) && !strings.Contains(log.String(), "session="+number+" ") {
			t.Errorf("entry %d is nowhere", i)
		}
	}
	if !strings.Contains(text, `"operation":"unwritten"`) || !strings.Contains(text, `"count":`+string(rune('0'+missing))+"}") {
		t.Errorf("the file does not tell of %d missing entries:\n%s", missing, text)
	}
}

// R19: a broker starts also with a full disk, to make room.
func TestStartOnFullDisk(t *testing.T) {
	dir := folder(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "nr_inodes=2,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := touch(dir + "/filler"); err != nil {
		t.Fatal(err)
	}
	trail, log := open(t, registry.Audit{File: dir + "/audit.log", MaxSize: 1 << 20, Files: 2})
	trail.Happened("start", "(broker)", "", "")
	if wire.CodeOf(trail.Available()) != wire.CodeAuditUnavailable || !strings.Contains(log.String(), "audit_unwritten") {
		t.Errorf("it is available, and the log says %q", log)
	}
	if err := os.Remove(dir + "/filler"); err != nil {
		t.Fatal(err)
	}
	if err := trail.Available(); err != nil {
		t.Error(err)
	}
}

// fill makes the disk full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 4096; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
