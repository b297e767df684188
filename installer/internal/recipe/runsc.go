package recipe

import (
	"context"
	"path/filepath"
	"runtime"

	"git.jb.codes/jb/paseo-sandbox/installer/internal/setup"
)

// Runsc is the recipe of the runtime: the module in the folder runsc of source
// pins gVisor, its go.sum the content. The same Go makes the same bytes.
func Runsc(source string) (*setup.Recipe, error) {
	source = filepath.Join(source, "runsc")
	k, err := key(source, []string{"runsc.go"}, []string{"go.mod", "go.sum"}, []string{runtime.GOARCH, runtime.Version()})
	if err != nil {
		return nil, err
	}
	build := func(ctx context.Context, b *setup.Bench, out string) error {
		env := []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + runtime.GOARCH, "GOWORK=off", "GOFLAGS=-mod=readonly"}
		return b.Exec(ctx, source, env, "go", "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags=-s -w",
			"-o", filepath.Join(out, "runsc"), "gvisor.dev/gvisor/runsc")
	}
	return &setup.Recipe{
		Name: "runsc", Key: k, Payload: "runsc", Space: 1 << 30,
		Needs:  []setup.Tool{{Name: "go", Advice: "Install the Go that go.mod names and put it on PATH."}},
		Stages: []setup.Stage{{Name: "build", Run: build}},
	}, nil
}
