// Package disk gives a session a home of bounded size: an ext4 file system in
// a sparse image file, mounted from a loop device (R34). Who fills it gets
// ENOSPC, and nobody else notices.
//
// The image is made and mounted as the broker made it: an agent reaches it only
// through the kernel's file system, never as a file. The size is a bound, not
// a reservation: images take from the host's disk what is written to them, and
// give back what is removed.
package disk
