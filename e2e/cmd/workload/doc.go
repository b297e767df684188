// Command workload is the agent of the kill storms, in a sandbox: it prints two
// streams (package flow) and checks a third, which it reads, byte by byte.
//
// Its arguments are the names of the streams of standard output, standard error
// and standard input, as hexadecimal numbers. It prints until its input ends.
// Then, or at the first fault in its input, its last line on standard output
// says so (package flow, Verdict).
package main
