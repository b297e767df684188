// Package app is the bridge's life: it takes its configuration from the
// broker, recovers the session, serves it, and ends cleanly when told to.
package app
