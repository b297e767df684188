// Package confine checks that the process has no privilege, and gives up what
// it can give up itself: from then on the kernel does for it what a running
// bridge needs, and kills it for anything else.
package confine
