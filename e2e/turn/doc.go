// Package turn gives real Pi a model: a scripted one on the sandbox's own
// loopback, with a key of the deployment's; and plays daemons that keep what
// they read on disk, as processes that a test can kill.
package turn
