// Package storm kills the processes of a running system again and again, at
// random instants, and checks that no byte is lost, repeated or reordered in
// either direction (R33, R40, R43, R48).
//
// Everything is real: the broker, the bridges, runsc, the reapers, and daemons
// in processes of their own, which keep what they know in a file. The agent
// checks its input and the daemon the agent's output, byte by byte (package
// flow). A System that is handed to New must have the profile of Profiles, the
// program e2e/cmd/workload as /workload in its root file system, and root among
// its users beside the one that daemons run as.
package storm
