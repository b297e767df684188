package runsc

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// bystander is a process that is none of a container's.
func bystander(t *testing.T, args ...string) *process.Process {
	t.Helper()
	exe, err := unix.Open("/bin/sleep", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(exe)
	p, err := process.Start(process.Command{Executable: exe, Args: append([]string{"sleep", "1000"}, args...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		p.Kill(ctx)
		p.Close()
	})
	return p
}

// R32: a sandbox that ended long ago is deleted without harm to the process
// that has got its pid.
func TestDeleteSparesAReusedPID(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	s := newSandbox(ctx, t, 96, 1000, "/bin/cat")
	state := filepath.Join(s.root, fmt.Sprintf("%s_sandbox:%s.state", s.id, s.id))
	st, err := s.runtime.State(ctx, s.id)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(st.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, status := s.end(ctx, t); status != "" {
		t.Errorf("status %q", status)
	}
	other := bystander(t)
	b, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	b = []byte(strings.Replace(string(b), fmt.Sprintf(`"pid":%d`, st.PID), fmt.Sprintf(`"pid":%d`, other.ID().PID), 1))
	if err := os.WriteFile(state, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s.remove(ctx, t)
	if other.Dead() {
		t.Error("the bystander was killed")
	}
}

// R32: a state file that was cut short by a crash keeps nothing alive.
func TestDeleteWithATornStateFile(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	s := newSandbox(ctx, t, 97, 1000, "/bin/cat")
	if err := os.Truncate(filepath.Join(s.root, fmt.Sprintf("%s_sandbox:%s.state", s.id, s.id)), 40); err != nil {
		t.Fatal(err)
	}
	s.remove(ctx, t)
}

// R32: a create that is cut off at any time is undone by Delete.
func TestDeleteAfterACutOffCreate(t *testing.T) {
	for n, delay := range cutOffs {
		t.Run(delay.String(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			s := prepareSandbox(ctx, t, 112+n, 1000, "/bin/cat")
			short, cut := context.WithTimeout(ctx, delay)
			defer cut()
			err := s.create(short)
			if err != nil && wire.CodeOf(err) != wire.CodeTimeout {
				t.Errorf("create: %v", err)
			}
			s.remove(ctx, t)
		})
	}
}

// R31: Delete right after an exit does not take the status away.
func TestDeleteKeepsTheStatus(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for n := range 3 {
		s := newSandbox(ctx, t, 128+n, 1000, "/bin/sh", "-c", "read x; exit 9")
		if err := s.runtime.Start(ctx, s.id); err != nil {
			t.Fatal(err)
		}
		sandbox, err := s.runtime.processes(s.id)
		if err != nil {
			t.Fatal(err)
		}
		s.stdin.Close()
		for _, m := range sandbox {
			if strings.Contains(strings.Join(process.Words(m.ID().PID), " "), "runsc-sandbox") {
				if err := m.Wait(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
		closeAll(sandbox)
		s.remove(ctx, t)
		if _, status := s.end(ctx, t); !strings.Contains(status, `"exitStatus":9}`) {
			t.Errorf("status %q", status)
		}
	}
}
