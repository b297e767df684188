// Package rootonly leaves out tests that can't run without root: those that
// mount, become other users, or start sandboxes.
package rootonly

import (
	"os"
	"testing"
)

// Test skips the test, with what to do about it, unless this is root.
func Test(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("root is needed: sudo make test")
	}
}
