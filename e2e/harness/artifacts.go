package harness

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Containers lists what runsc knows below this system's root, asked without
// the broker.
func (s *System) Containers(ctx context.Context) ([]string, error) {
	root := filepath.Join(s.Prefix, "run", "runsc")
	if _, err := os.Stat(root); os.IsNotExist(err) {
		return []string{}, nil
	}
	out, err := exec.CommandContext(ctx, s.artifacts.Runsc.Path, "--root", root, "list", "--quiet").Output()
	if err != nil {
		return nil, fmt.Errorf("runsc list: %w", err)
	}
	ids := []string{}
	for _, id := range bytes.Fields(out) {
		ids = append(ids, string(id))
	}
	return ids, nil
}
