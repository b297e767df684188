// Package confine checks that the process has no privilege, and gives up what
// it can give up itself.
package confine
