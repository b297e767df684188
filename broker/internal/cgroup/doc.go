// Package cgroup makes sure that a session's limits are in force (R34): that
// the host has the controllers, before the first session, and that the kernel
// has the limits, before a session starts. It reads from a session's cgroups
// what runsc does not tell, and removes those that runsc leaves behind (R32).
//
// It knows cgroup v1, with a hierarchy for each controller, and v2. Where
// systemd has delegated a part of v2's tree to the broker, and put the broker
// into a group of its own below it (DelegateSubgroup=), the sessions' groups
// are beside that; else they are at the top, where systemd leaves alone what is
// not its own.
package cgroup
