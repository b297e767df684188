package runsc

import (
	"context"
	"encoding/json"
	"fmt"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// State is what runsc knows of a container.
type State struct {
	// Status is creating, created, running or stopped.
	Status string
	// PID is that of the sandbox's process on the host; 0 when stopped.
	PID int
}

// State asks for a container's state. It returns ErrNotFound for an unknown
// one.
func (r *Runtime) State(ctx context.Context, id wire.SessionID) (State, error) {
	if err := r.find(id); err != nil {
		return State{}, err
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
