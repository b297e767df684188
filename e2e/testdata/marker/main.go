// Command marker is the one program of the tests' small root file systems. It
// ends with the status that the file /marker names, so that a test can tell
// which root file system a session sees. With the argument "wait" it first
// waits for TERM, and writes what the file says to /workspace/marker too.
package main

import (
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	wait := len(os.Args) > 1 && os.Args[1] == "wait"
	if wait {
		<-term
	}
	b, err := os.ReadFile("/marker")
	if err != nil {
		os.Exit(99)
	}
	if wait && os.WriteFile("/workspace/marker", b, 0o644) != nil {
		os.Exit(97)
	}
	status, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		os.Exit(98)
	}
	os.Exit(status)
}
