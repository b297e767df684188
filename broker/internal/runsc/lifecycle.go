package runsc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// State is what runsc knows of a container.
type State struct {
	// Status is creating, created, running or stopped.
	Status string
	// PID is that of the sandbox's process on the host; 0 when stopped.
	PID int
}

// Start starts the container's first process.
func (r *Runtime) Start(ctx context.Context, id wire.SessionID) error {
	_, err := r.command(ctx, id, "start", string(id))
	return err
}

// State asks for a container's state. It returns ErrNotFound for an unknown
// one.
func (r *Runtime) State(ctx context.Context, id wire.SessionID) (State, error) {
	known, err := r.knows(id)
	if err != nil || !known {
		return State{}, errors.Join(err, notFound(known))
	}
	out, err := r.command(ctx, id, "state", string(id))
	if err != nil {
		return State{}, err
	}
	var s struct {
		Status string `json:"status"`
		PID    int    `json:"pid"`
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return State{}, fmt.Errorf("runsc state: %w", err)
	}
	return State{Status: s.Status, PID: s.PID}, nil
}

func notFound(known bool) error {
	if known {
		return nil
	}
	return ErrNotFound
}

// Signal sends a signal, named without SIG, to the container's first process.
// It returns ErrNotFound for an unknown container.
func (r *Runtime) Signal(ctx context.Context, id wire.SessionID, sig string) error {
	known, err := r.knows(id)
	if err != nil || !known {
		return errors.Join(err, notFound(known))
	}
	_, err = r.command(ctx, id, "kill", string(id), sig)
	return err
}

// deleteRetry is how long a container is given to be seen as stopped, between
// two tries, and deletePatience how long in all before force is used.
const (
	deleteRetry    = 20 * time.Millisecond
	deletePatience = 500 * time.Millisecond
)

// Delete ends the container, whatever its state, and removes it. It returns
// only when no process of it is left, or with an error. It is idempotent,
// also for a container that never was.
func (r *Runtime) Delete(ctx context.Context, id wire.SessionID) error {
	processes, err := r.processes(id)
	if err != nil {
		return err
	}
	defer closeAll(processes)
	if err := r.delete(ctx, id); err != nil {
		return err
	}
	// What runsc did not end, or no longer knew, is ended here.
	late, err := r.processes(id)
	if err != nil {
		return err
	}
	defer closeAll(late)
	for _, p := range append(processes, late...) {
		if err := p.Kill(ctx); err != nil {
			return fmt.Errorf("end what is left of container %s: %w", id, err)
		}
	}
	for _, name := range []string{r.logFile(id), r.pidFile(id)} {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("delete container %s: %w", id, err)
		}
	}
	return nil
}

// delete lets runsc remove the container. Right after an exit it may still
// think that it runs.
func (r *Runtime) delete(ctx context.Context, id wire.SessionID) error {
	deadline := time.Now().Add(deletePatience)
	for {
		known, err := r.knows(id)
		if err != nil || !known {
			return err
		}
		args := []string{"delete", string(id)}
		if time.Now().After(deadline) {
			args = []string{"delete", "--force", string(id)}
		}
		_, err = r.command(ctx, id, args...)
		if err == nil || errors.Is(err, ErrNotFound) {
			return r.forget(id)
		}
		if len(args) == 3 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("delete container %s: %w", id, context.Cause(ctx))
		case <-time.After(deleteRetry):
		}
	}
}

// List returns the ids of all containers below the root.
func (r *Runtime) List(context.Context) ([]wire.SessionID, error) {
	names, err := containerFiles(r.o.Root)
	if err != nil {
		return nil, err
	}
	var ids []wire.SessionID
	for _, name := range names {
		if id := wire.SessionID(name[:32]); id.Valid() && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// containerFiles returns the names of the state files below runsc's root, each
// of which begins with the id of its container.
func containerFiles(root string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var names []string
	for _, e := range entries {
		if n := e.Name(); len(n) > 32 && wire.SessionID(n[:32]).Valid() {
			names = append(names, n)
		}
	}
	return names, nil
}

// knows reports whether runsc has state of the container. Asking runsc would
// take a process, and it matches ids by prefix.
func (r *Runtime) knows(id wire.SessionID) (bool, error) {
	names, err := containerFiles(r.o.Root)
	return slices.ContainsFunc(names, func(n string) bool { return n[:32] == string(id) && strings.HasSuffix(n, ".state") }), err
}

// forget removes state files that a killed runsc left.
func (r *Runtime) forget(id wire.SessionID) error {
	names, err := containerFiles(r.o.Root)
	if err != nil {
		return err
	}
	for _, n := range names {
		if n[:32] != string(id) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(r.o.Root, n)); err != nil {
			return fmt.Errorf("forget container %s: %w", id, err)
		}
	}
	return nil
}

// processes finds the sandbox, gofer and commands of the container: those
// whose command line names our root and the id. The agent's own processes are
// not processes of the host.
func (r *Runtime) processes(id wire.SessionID) ([]*process.Process, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []*process.Process
	for _, dir := range dirs {
		if !r.owns(dir, id) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(dir), "%d", &pid); err != nil || pid == unix.Getpid() {
			continue
		}
		p, err := process.Open(pid)
		if errors.Is(err, process.ErrGone) {
			continue
		}
		if err != nil {
			closeAll(found)
			return nil, err
		}
		// Held now: had the pid been given to another, this would say so.
		if !r.owns(dir, id) {
			p.Close()
			continue
		}
		found = append(found, p)
	}
	return found, nil
}

func (r *Runtime) owns(dir string, id wire.SessionID) bool {
	b, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return false
	}
	words := strings.Split(string(b), "\x00")
	// A sandbox may rename itself, but only root can run as root below
	// this folder: the words are those that we gave.
	return slices.Contains(words, "--root="+r.o.Root) && slices.Contains(words, string(id))
}

func closeAll(processes []*process.Process) {
	for _, p := range processes {
		p.Close()
	}
}
