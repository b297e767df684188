// Package launch executes our unprivileged programs, none of whose code ever
// runs as root (R3). A child of the broker, which is the broker's own binary
// under another name, takes every restriction upon itself and then becomes the
// program.
package launch
