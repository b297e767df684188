// Package session makes, watches and ends sessions: it holds the one table of
// steps by which a session comes into being and is undone, keeps spare copies
// of its descriptors, and replaces a bridge that died (R30 to R33).
package session
