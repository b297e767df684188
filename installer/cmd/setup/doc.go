// Command setup builds the runsc executable and the Pi rootfs into a cache, or
// reports what is there.
//
// Exit status: 0 all is ready, 1 it failed or, with --check, something is not
// ready, 2 wrong usage, 130 interrupted.
package main
