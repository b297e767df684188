// Package server answers clients on the broker's sockets: it says who may ask
// for what, writes the audit, and bounds what a connection can use (R11, R12,
// R19). The socket that a request arrives on is its deployment.
package server
