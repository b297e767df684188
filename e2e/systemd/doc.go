// Package systemd boots a real systemd for tests: a machine in namespaces of
// its own, whose root file system is Debian's, from the artifacts that set-up
// makes for tests. It leaves nothing on the host.
package systemd
