// Package harness runs a whole system in a temporary prefix: configuration,
// workspaces, a real broker with real runsc and the real root file system. The
// demo, the end-to-end tests and the benchmarks are built on it.
package harness
