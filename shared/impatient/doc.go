// Package impatient bounds how long the peer of a connection may be idle, and
// how long it may take to send one message.
package impatient
