// Package workspace resolves a workspace's folder, or one below it, makes sure
// that it is apart from what is the broker's, and pins it by a cloned mount, so
// that nothing that happens to its path afterwards changes what a sandbox sees
// (R13, R14).
package workspace
