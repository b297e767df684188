// Package launch executes the bridge under an unprivileged user, without its
// code ever running as root (R3).
package launch
