// Package e2e holds the whole-system tests: real runsc, the real Pi root file
// system, real sockets. They need root and the artifacts of make setup.
package e2e
