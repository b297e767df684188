package runsc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// member is a process of a container: its sandbox, gofer, reaper, or a command
// of runsc's. The agent's own processes are not processes of the host.
type member struct {
	*process.Process
	reaper bool
}

const (
	// reaperGrace is how long a reaper is given to tell the end of a sandbox
	// that has just been killed.
	reaperGrace = time.Second
	// endRounds bounds how often one looks for what a dying command has
	// started meanwhile.
	endRounds = 16
)

// end kills every process of the container and waits until all are dead. The
// reapers come last: they end by themselves, having told the status.
func (r *Runtime) end(ctx context.Context, id wire.SessionID) error {
	for range endRounds {
		found, err := r.processes(id)
		if err != nil || len(found) == 0 {
			return err
		}
		err = endAll(ctx, found)
		closeAll(found)
		if err != nil {
			return fmt.Errorf("end what is left of container %s: %w", id, err)
		}
	}
	return fmt.Errorf("end what is left of container %s: new processes appear all the time", id)
}

func endAll(ctx context.Context, found []member) error {
	for _, m := range found {
		if m.reaper {
			continue
		}
		if err := m.Kill(ctx); err != nil {
			return err
		}
	}
	grace, cancel := context.WithTimeout(ctx, reaperGrace)
	defer cancel()
	for _, m := range found {
		if m.Wait(grace) == nil {
			continue
		}
		if err := m.Kill(ctx); err != nil {
			return err
		}
	}
	return nil
}

func closeAll(found []member) {
	for _, m := range found {
		m.Close()
	}
}

// processes finds those whose command line names our root and the id.
func (r *Runtime) processes(id wire.SessionID) ([]member, error) {
	all, err := process.Search(func(uid uint32, words []string) bool { return r.owns(uid, words) == id })
	var found []member
	for _, p := range all {
		found = append(found, member{p, process.Words(p.ID().PID)[0] == reaperName})
	}
	return found, err
}

// nobody is the user that runsc runs sandboxes as.
const nobody = 65534

// owns returns the id of the container that a process belongs to, by the words
// that we gave it, or "". Anyone can start a program with the same words, but
// only root, nobody, whom sandboxes run as, and the users of reapers are
// believed.
func (r *Runtime) owns(uid uint32, words []string) wire.SessionID {
	if uid != 0 && uid != nobody && !r.o.ReaperUID(uid) || !slices.Contains(words, "--root="+r.o.Root) {
		return ""
	}
	i := slices.IndexFunc(words, func(w string) bool { return wire.SessionID(w).Valid() })
	if i < 0 {
		return ""
	}
	return wire.SessionID(words[i])
}

// reused reports whether a pid that runsc wrote into its state file belongs to
// another process by now: the sandbox may have ended long ago.
func (r *Runtime) reused(id wire.SessionID) (bool, error) {
	b, err := os.ReadFile(filepath.Join(r.o.Root, string(id)+"_sandbox:"+string(id)+".state"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the state of container %s: %w", id, err)
	}
	var s struct {
		Gofer   int `json:"goferPid"`
		Sandbox *struct {
			PID int `json:"pid"`
		} `json:"sandbox"`
	}
	if json.Unmarshal(b, &s) != nil {
		return true, nil // half written: runsc can't use it either
	}
	pids := []int{s.Gofer}
	if s.Sandbox != nil {
		pids = append(pids, s.Sandbox.PID)
	}
	for _, pid := range pids {
		// A dead one that waits to be reaped has no words any more.
		ours := func(uid uint32, words []string) bool { return r.owns(uid, words) == id }
		if pid > 0 && process.Words(pid)[0] != "" && !process.Is(pid, ours) {
			return true, nil
		}
	}
	return false, nil
}
