// Package cache finds what the set-up built: the directory, outside the source
// tree, that holds the runtime and the rootfs, and the index that names them.
package cache
