package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Artifact is one thing that make setup built.
type Artifact struct {
	Path     string `json:"path"`
	Manifest string `json:"manifest"`
	Digest   string `json:"digest"`
}

// Artifacts are what make setup built.
type Artifacts struct {
	Runsc  Artifact `json:"runsc"`
	Rootfs Artifact `json:"rootfs"`
}

// LoadArtifacts finds them in the cache, $PASEO_SANDBOX_CACHE or its default.
func LoadArtifacts() (Artifacts, error) {
	cache := os.Getenv("PASEO_SANDBOX_CACHE")
	if cache == "" {
		cache = "/var/cache/paseo-sandbox"
	}
	var a Artifacts
	b, err := os.ReadFile(filepath.Join(cache, "artifacts.json"))
	if err != nil {
		return a, fmt.Errorf("the artifacts are not built; run 'make setup': %w", err)
	}
	return a, json.Unmarshal(b, &a)
}

// Containers lists what runsc knows below this system's root, asked without
// the broker.
func (s *System) Containers(ctx context.Context) ([]string, error) {
	root := filepath.Join(s.Prefix, "run", "runsc")
	if _, err := os.Stat(root); os.IsNotExist(err) {
		return nil, nil
	}
	out, err := exec.CommandContext(ctx, s.env.Runsc.Path, "--root", root, "list", "--quiet").Output()
	if err != nil {
		return nil, fmt.Errorf("runsc list: %w", err)
	}
	ids := []string{}
	for _, id := range bytes.Fields(out) {
		ids = append(ids, string(id))
	}
	return ids, nil
}
