// Command tcb reports what runs as root: the lines of our own that are linked
// into the broker, and of these the ones in functions that the linker kept;
// the modules that come with them; the capabilities that the broker keeps
// (R20). Exit status: 0, 1 when something failed, 2 for wrong usage.
package main
