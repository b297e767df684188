// Package activation gets the broker its listening sockets: from systemd, with
// what systemd kept for it, or by making them; and makes sure that there is one
// broker at a time.
package activation
