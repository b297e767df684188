// Package clienttest is a broker and its bridges for tests: they keep
// everything in memory and run the agent as a function, but speak the protocol
// on real Unix sockets. Nothing in it is sandboxed.
package clienttest
