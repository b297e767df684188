// Package client lets a Go program use sandboxed agent sessions: Broker
// creates, lists and ends them, Session talks with one session's agent, and
// SaveCursor and LoadCursor keep its place over a crash of the program.
package client
