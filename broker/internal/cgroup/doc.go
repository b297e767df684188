// Package cgroup reads from a session's cgroups what runsc does not tell, and
// removes those that it leaves behind (R32, R34), in cgroup v1 and v2.
package cgroup
