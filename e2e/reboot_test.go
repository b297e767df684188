package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// brokerOfAnotherBoot starts the broker, once there is a file beside it, where
// the kernel's boot id is that file's.
const brokerOfAnotherBoot = `#!/bin/sh
real=%[1]s/paseo-sandbox-broker boot=%[2]s/boot_id
[ -e $boot ] || exec $real "$@"
exec unshare --mount --propagation private /bin/sh -c 'mount --bind "$1" /proc/sys/kernel/random/boot_id && shift && exec "$@"' sh $boot $real "$@"
`

// R31: a host that goes down takes all processes, mounts, sockets, cgroups and
// runsc's state with it. The broker of the next boot says of each session that
// this was its end, lets all be read that was spooled, with the exit behind it,
// and removes it without a trace.
func TestHostRestart(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	bin := t.TempDir()
	must(t, os.WriteFile(filepath.Join(bin, "paseo-sandbox-broker"), fmt.Appendf(nil, brokerOfAnotherBoot, programs(t), bin), 0o755))
	bridge, err := os.ReadFile(filepath.Join(programs(t), "paseo-sandbox-bridge"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(bin, "paseo-sandbox-bridge"), bridge, 0o755))
	s := startSmallSystem(t, harness.Options{Bin: bin, Profiles: echoProfiles + patientProfile})
	ctx, cancel := context.WithTimeout(t.Context(), deathsTimeout)
	defer cancel()
	b, session, info := startSession(ctx, t, s, client.CreateOptions{Profile: "stdout"})
	var want bytes.Buffer
	for i := range 50 {
		line := bytes.Repeat(fmt.Appendf(nil, "line %d ", i), 1000)
		line[len(line)-1] = '\n'
		_, err := session.Input(ctx, fmt.Sprint(i), line)
		must(t, err)
		r, err := session.Next(ctx)
		if err != nil || !bytes.Equal(r.Data, line) {
			t.Fatalf("%.100q, %v", r.Data, err)
		}
		want.Write(line)
	}
	must(t, session.Ack(ctx, 10)) // freed, or not
	_, _, idle := startSession(ctx, t, s, client.CreateOptions{Profile: "patient"})
	session.Close()
	b.Close()

	goDown(ctx, t, s, info.Session, idle.Session)
	must(t, os.WriteFile(filepath.Join(bin, "boot_id"), []byte("00000000-0000-4000-8000-000000000000\n"), 0o644))
	must(t, s.StartBroker(ctx))
	for _, id := range []wire.SessionID{info.Session, idle.Session} {
		poll(ctx, t, "the session has ended and can be read", func() bool {
			now := inspectNow(ctx, t, s, id)
			return now.State == wire.StateExited && now.BridgePID != 0 && now.Exit != nil && now.Exit.Reason == wire.ReasonHostRestarted
		})
	}
	checkReadable(ctx, t, filepath.Join(filepath.Dir(s.BrokerSocket()), info.Socket), want.Bytes())
	deleteNow(ctx, t, s, info.Session)
	deleteNow(ctx, t, s, idle.Session)
	checkNothing(t, s)
}

// goDown takes from the sessions what a host that goes down takes: it leaves the
// files of the disk.
func goDown(ctx context.Context, t *testing.T, s *harness.System, ids ...wire.SessionID) {
	t.Helper()
	must(t, s.StopBroker(syscall.SIGKILL))
	for _, id := range ids {
		r := readRecord(t, s, id)
		for _, pid := range []int{r.Sandbox.PID, goferOf(t, id), r.Reaper.PID, r.Bridge.PID} {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
				t.Fatal(err)
			}
		}
	}
	poll(ctx, t, "only files are left", func() bool {
		left, err := s.Leftovers()
		must(t, err)
		// What lies in another goes first.
		sort.Sort(sort.Reverse(sort.StringSlice(left)))
		others := 0
		for _, what := range left {
			kind, path, _ := strings.Cut(what, " ")
			switch kind {
			case "mount":
				unix.Unmount(path, unix.MNT_DETACH)
			case "cgroup":
				os.Remove(path)
			case "process", "loop":
			default:
				continue
			}
			others++
		}
		return others == 0
	})
	must(t, os.RemoveAll(filepath.Join(s.Prefix, "run")))
}

// checkReadable wants the end of what was printed, at least what no writer has
// acknowledged, and then the exit.
func checkReadable(ctx context.Context, t *testing.T, socket string, printed []byte) {
	t.Helper()
	session, err := client.DialSession(ctx, socket)
	must(t, err)
	defer session.Close()
	attached, err := session.Attach(ctx, client.AttachOptions{Mode: wire.ModeWriter, From: wire.FromOldest})
	must(t, err)
	var got bytes.Buffer
	for sequence := max(1, attached.LostBefore); ; sequence++ {
		r, err := session.Next(ctx)
		must(t, err)
		if r.Sequence != sequence {
			t.Fatalf("record %d is %d", sequence, r.Sequence)
		}
		if r.Stream == wire.StreamExit {
			exit, err := wire.DecodeExit(r.Data)
			if err != nil || exit.Reason != wire.ReasonHostRestarted {
				t.Errorf("exit %+v, %v", exit, err)
			}
			break
		}
		got.Write(r.Data)
	}
	if attached.Acked != 10 || attached.LostBefore > 11 || !bytes.HasSuffix(printed, got.Bytes()) || bytes.Count(got.Bytes(), []byte("\n")) < 40 {
		t.Errorf("attached as %+v, %d bytes of %d", attached, got.Len(), len(printed))
	}
	if _, err := session.Input(ctx, "late", []byte("late\n")); wire.CodeOf(err) != wire.CodeRuntimeNotWritable {
		t.Errorf("an input after the end: %v", err)
	}
}
