// Package process names processes so that a pid that was reused is never taken
// for the one that was meant, starts children by descriptor, and waits for
// deaths on pidfds (pidfd_open(2)).
package process
