// Package seccomp assembles lists of system calls into the small programs that
// the kernel asks at every system call, and installs them (seccomp(2)).
package seccomp
