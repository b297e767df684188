// Package rootfs keeps the root file systems that an operator imported: it
// reads a folder or a tar stream, lets through what an artifact may hold, and
// stores it under the digest of what is on the disk in the end (R16, R80).
//
// The store is a folder of root's, mode 0700. Each root file system is a
// folder in it, named by the hex digits of its digest, with the tree and its
// manifest, in the format of package artifact. An import is written to a
// folder ".import-*", brought to the disk and renamed at the end; a removal is
// renamed to ".remove-*" first. Whoever works on such a folder holds its
// flock(2), so what a crash has left is told from what is in use, and the next
// import or list removes it.
//
// The source is hostile: an archive may come from a registry, a folder may
// change while it is read. Nothing is written by path. Names are checked as
// text, each parent must be a folder that this import made, and it is opened
// beneath the descriptor of the tree without following a link.
package rootfs
