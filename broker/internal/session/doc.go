// Package session makes, watches and ends sessions: it holds the one table of
// steps by which a session comes into being and is undone, keeps spare copies
// of its descriptors, replaces a bridge that died (R30 to R33), does what policies
// have due, and collects what has been left behind (R32, R35).
package session
