// Package staticbin builds the programs of tests that run under the fences of
// ours: they are static and without the race detector, whose system calls a
// fence does not allow.
package staticbin

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Test builds the tests of the package in the working directory, which is the
// one under test. Remove the folder of the program when it is not needed any
// more.
func Test() (program string, err error) { return build("test", "-c", "-vet=off", ".") }

// Program builds the main package pkg.
func Program(pkg string) (program string, err error) { return build("build", pkg) }

// build adds -o to the command, before its last argument.
func build(args ...string) (string, error) {
	dir, err := os.MkdirTemp("", "static-")
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "program")
	last := len(args) - 1
	cmd := exec.Command("go", append(args[:last:last], "-o", program, args[last])...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err == nil {
		// Another user executes it.
		err = os.Chmod(program, 0o755)
	}
	if err != nil {
		return "", fmt.Errorf("build a static program: %w\n%s", err, out)
	}
	return program, nil
}
