package runsc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/process"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Start starts the container's first process.
func (r *Runtime) Start(ctx context.Context, id wire.SessionID) error {
	_, err := r.command(ctx, id, "start", string(id))
	return err
}

// find returns ErrNotFound unless runsc has state of the container.
func (r *Runtime) find(id wire.SessionID) error {
	known, err := r.knows(id)
	if err == nil && !known {
		err = ErrNotFound
	}
	return err
}

// Signal sends a signal, named without SIG, to the container's first process.
// It returns ErrNotFound for an unknown container.
func (r *Runtime) Signal(ctx context.Context, id wire.SessionID, sig string) error {
	if err := r.find(id); err != nil {
		return err
	}
	_, err := r.command(ctx, id, "kill", string(id), sig)
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
	if !id.Valid() {
		return fmt.Errorf("delete container: %.40q is not the id of a session", id)
	}
	// What runsc can't do is done below; only what is left counts in the end.
	failed := r.delete(ctx, id)
	if err := r.end(ctx, id); err != nil {
		return errors.Join(err, failed)
	}
	if err := r.forget(id); err != nil {
		return errors.Join(err, failed)
	}
	for _, name := range []string{r.logFile(id), r.pidFile(id), filepath.Join(r.o.Root, "runsc-"+string(id)+".sock")} {
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
		// runsc kills the pids of its state file, whoever has them now.
		if reused, err := r.reused(id); err != nil || reused {
			return err
		}
		args := []string{"delete", string(id)}
		if time.Now().After(deadline) {
			args = []string{"delete", "--force", string(id)}
		}
		_, err = r.command(ctx, id, args...)
		if err == nil || len(args) == 3 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("delete container %s: %w", id, context.Cause(ctx))
		case <-time.After(deleteRetry):
		}
	}
}

// List returns what there is of containers, each with the id of its own: the
// files below the root and those of logs, and processes as /proc/PID.
func (r *Runtime) List(context.Context) (map[string]wire.SessionID, error) {
	found := make(map[string]wire.SessionID)
	names, err := containerFiles(r.o.Root)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		found[filepath.Join(r.o.Root, name)] = wire.SessionID(name[:32])
	}
	if names, err = containerFiles(r.o.LogDir); err != nil {
		return nil, err
	}
	for _, name := range names {
		found[filepath.Join(r.o.LogDir, name)] = wire.SessionID(name[:32])
	}
	all, err := process.Search(func(uid uint32, words []string) bool { return r.owns(uid, words) != "" })
	for _, p := range all {
		process.Is(p.ID().PID, func(uid uint32, words []string) bool {
			if id := r.owns(uid, words); id != "" {
				found[fmt.Sprintf("/proc/%d", p.ID().PID)] = id
			}
			return true
		})
		p.Close()
	}
	return found, err
}

// containerFiles returns the names of the files in one of runsc's folders,
// each of which begins with the id of its container.
func containerFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
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
		if err := os.Remove(filepath.Join(r.o.Root, n)); err != nil {
			return fmt.Errorf("forget container %s: %w", id, err)
		}
	}
	return nil
}
