// Package workspace resolves a workspace's folder and pins it by a cloned
// mount, so that nothing that happens to its path afterwards changes what a
// sandbox sees (R13, R14).
package workspace
