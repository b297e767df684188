// Package layout says where everything of the broker is on the host, and makes
// the folders.
package layout
