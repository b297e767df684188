// Command marker is the one program of the tests' small root file systems. It
// ends with the status that the file /marker names, so that a test can tell
// which root file system a session sees.
package main

import (
	"os"
	"strconv"
	"strings"
)

func main() {
	b, err := os.ReadFile("/marker")
	if err != nil {
		os.Exit(99)
	}
	status, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		os.Exit(98)
	}
	os.Exit(status)
}
