// Package pi is the part of a Go client that knows the protocol of Pi
// (pi --mode rpc). The client beside it carries bytes for any agent.
package pi
