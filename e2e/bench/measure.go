package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Sizes of the records, in bytes with their line feed.
const (
	smallRecord = 200
	largeRecord = 64 << 10
)

// ackEvery is how many bytes the client reads between two acks.
const ackEvery = 16 << 20

type bench struct {
	options  Options
	system   *harness.System
	broker   *client.Broker
	model    wire.SessionInfo
	bareRoot string
	bare     int
}

// prepare writes the programs' output into the workspace, and starts the
// session whose bundle bare runsc runs: its pinned workspace stays mounted.
func (b *bench) prepare(ctx context.Context) error {
	for name, size := range map[string]int{"small": smallRecord, "large": largeRecord} {
		b.options.Say("writing %d MiB of records of %d bytes", b.options.Bytes>>20, size)
		if err := writeRecords(filepath.Join(b.system.WorkspaceDir("project"), name), size, b.options.Bytes); err != nil {
			return err
		}
	}
	if err := os.Mkdir(b.bareRoot, 0o700); err != nil {
		return err
	}
	var err error
	if b.broker, err = client.DialBroker(ctx, b.system.BrokerSocket()); err != nil {
		return err
	}
	b.model, err = b.start(ctx, "idle")
	return err
}

// close removes what bare runsc leaves behind: the namespace that it pins, and
// the parent of its cgroups.
func (b *bench) close() error {
	errs := []error{b.broker.Close()}
	if err := unix.Unmount(filepath.Join(b.bareRoot, "root", "null-netns"), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, err)
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*" + bareCgroup)
	errs = append(errs, err)
	for _, dir := range append(groups, "/sys/fs/cgroup"+bareCgroup) {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// bareCgroup is the parent of bare runsc's cgroups.
const bareCgroup = "/paseo-sandbox-bench"

func writeRecords(path string, size int, total int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	chunk := bytes.Repeat(append(bytes.Repeat([]byte("x"), size-1), '\n'), max(1, (1<<20)/size))
	for written := int64(0); written < total; written += int64(len(chunk)) {
		if _, err := f.Write(chunk); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return f.Close()
}

func (b *bench) start(ctx context.Context, profile string) (wire.SessionInfo, error) {
	return b.broker.Create(ctx, client.CreateOptions{Workspace: "project", Profile: profile})
}

// timeSession is a create request until its answer, in seconds.
func (b *bench) timeSession(ctx context.Context) (float64, error) {
	start := time.Now()
	info, err := b.start(ctx, "idle")
	if err != nil {
		return 0, err
	}
	took := time.Since(start).Seconds()
	return took, b.broker.Delete(ctx, info.Session)
}

// timeBare is runsc create and start on the model session's bundle, in seconds.
func (b *bench) timeBare(ctx context.Context) (float64, error) {
	bundle, id, err := b.bareBundle(nil)
	if err != nil {
		return 0, err
	}
	devNull, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer devNull.Close()
	start := time.Now()
	if err := b.runsc(ctx, devNull, devNull, "create", "--bundle", bundle, id); err != nil {
		return 0, err
	}
	if err := b.runsc(ctx, devNull, devNull, "start", id); err != nil {
		return 0, err
	}
	took := time.Since(start).Seconds()
	return took, b.runsc(ctx, devNull, devNull, "delete", "--force", id)
}

// bareBundle copies the model session's configuration for one container of
// its own, with other arguments if there are any.
func (b *bench) bareBundle(args []string) (dir, id string, err error) {
	raw, err := os.ReadFile(filepath.Join(b.system.Prefix, "var", "bundles", string(b.model.Session), "config.json"))
	if err != nil {
		return "", "", err
	}
	var spec specs.Spec
	if err := json.Unmarshal(raw, &spec); err != nil {
		return "", "", err
	}
	b.bare++
	id = fmt.Sprintf("bare%08d", b.bare)
	if spec.Linux != nil && spec.Linux.CgroupsPath != "" {
		spec.Linux.CgroupsPath = bareCgroup + "/" + id
	}
	if len(args) > 0 {
		spec.Process.Args = args
	}
	if raw, err = json.Marshal(spec); err != nil {
		return "", "", err
	}
	dir = filepath.Join(b.bareRoot, id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", "", err
	}
	return dir, id, os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600)
}

// runsc runs the command with the flags that the broker uses.
func (b *bench) runsc(ctx context.Context, in, out *os.File, args ...string) error {
	flags := []string{"--root=" + filepath.Join(b.bareRoot, "root"), "--log=" + filepath.Join(b.bareRoot, "log"),
		"--network=none", "--directfs=false", "--host-uds=none", "--host-fifo=none",
		"--character-device-policy=emulated-only", "--net-raw=false", "--overlay2=none"}
	cmd := exec.CommandContext(ctx, b.system.Artifacts().Runsc.Path, append(flags, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("runsc %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// rateThroughBridge is how many records a second reach a client, from the word
// to go until the exit.
func (b *bench) rateThroughBridge(ctx context.Context, profile string, size int64) (float64, error) {
	info, err := b.start(ctx, profile)
	if err != nil {
		return 0, err
	}
	session, err := client.DialSession(ctx, b.broker.SessionSocket(info))
	if err != nil {
		return 0, err
	}
	defer session.Close()
	if _, err := session.Attach(ctx, client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromOldest}); err != nil {
		return 0, err
	}
	start := time.Now()
	if _, err := session.Input(ctx, "go", []byte("\n")); err != nil {
		return 0, err
	}
	records, err := drain(ctx, session, size)
	if err != nil {
		return 0, err
	}
	rate := perSecond(records, time.Since(start))
	return rate, b.broker.Delete(ctx, info.Session)
}

// drain reads until the exit and acknowledges now and then.
func drain(ctx context.Context, session *client.Session, size int64) (records int64, err error) {
	acked := int64(0)
	for {
		batch, err := session.NextBatch(ctx)
		if err != nil {
			return 0, err
		}
		for i := range batch {
			if batch[i].Stream == wire.StreamExit {
				return records, nil
			}
			if batch[i].Stream != wire.StreamStdout || int64(len(batch[i].Data)) != size {
				return 0, fmt.Errorf("an unexpected record: %.100q", batch[i].Data)
			}
			records++
		}
		if (records-acked)*size >= ackEvery {
			if err := session.Ack(ctx, batch[len(batch)-1].Sequence); err != nil {
				return 0, err
			}
			acked = records
		}
	}
}

// rateThroughPipe is how many records a second come out of the same sandbox
// when we read its pipe ourselves.
func (b *bench) rateThroughPipe(ctx context.Context, profile string, size int64) (float64, error) {
	bundle, id, err := b.bareBundle([]string{"/bin/sh", "-c", "read go; exec cat /workspace/" + profile})
	if err != nil {
		return 0, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	in, word, err := os.Pipe()
	if err != nil {
		return 0, errors.Join(err, w.Close())
	}
	defer word.Close()
	err = b.runsc(ctx, in, w, "create", "--bundle", bundle, id)
	in.Close()
	w.Close()
	if err != nil {
		return 0, err
	}
	devNull, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer devNull.Close()
	if err := b.runsc(ctx, devNull, devNull, "start", id); err != nil {
		return 0, err
	}
	start := time.Now()
	if _, err := word.WriteString("\n"); err != nil {
		return 0, err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, make([]byte, 1<<20))
	if err != nil {
		return 0, err
	}
	rate := perSecond(n/size, time.Since(start))
	return rate, b.runsc(ctx, devNull, devNull, "delete", "--force", id)
}
