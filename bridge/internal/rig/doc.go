// Package rig makes a session the way the broker does, for tests: pipes, files
// and listener in a temporary folder, the spare descriptors, and the broker's
// answers. It also has a plain client. No program imports it.
package rig
