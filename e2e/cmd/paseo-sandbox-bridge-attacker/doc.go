// Command paseo-sandbox-bridge-attacker is a bridge that was taken over: it takes its configuration
// as a bridge does, waits for a list of targets in a file of its own session,
// tries everything that it could want, and says how each attempt ended. Started
// with the argument "control", and the targets as its input, it tries the same
// without being a bridge. Tests compare the two.
package main
