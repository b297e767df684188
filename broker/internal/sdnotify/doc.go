// Package sdnotify tells systemd how the broker is, and has it keep descriptors
// that must survive the broker (sd_notify(3), systemd.service(5),
// FileDescriptorStoreMax=).
//
// It is written by hand because it is root's code and all of it is one socket
// with lines of text: github.com/coreos/go-systemd sends no descriptors, waits
// for no barrier, and has no deadline.
package sdnotify
