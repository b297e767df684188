// Package inforce holds the configuration that is in force, with the sockets
// that it asks for, and replaces both while the broker runs: wholly, or not at
// all.
package inforce
