// Package artifact says whether a rootfs tree or an executable on disk is, byte
// for byte, the one that was built.
//
// An artifact is a directory tree or a single file with a manifest beside it: a
// sorted plain-text list of every entry with its type, mode, owner, size,
// SHA-256 and symlink target. The SHA-256 of the manifest is the artifact's
// digest, written "sha256:<hex>". Whoever trusts a digest trusts the tree.
//
// A manifest is lines, each ended by LF, of fields parted by one space:
//
//	paseo-sandbox-artifact/1 tree          or "file", for a single file
//	d MODE UID GID PATH                    directory
//	f MODE UID GID SIZE SHA256 PATH        regular file
//	l 0777 UID GID PATH TARGET             symlink
//
// MODE is four octal digits, SHA256 lower-case hexadecimal, other numbers are
// decimal. PATH is relative and clean; the first is "." for the artifact itself,
// the others follow in ascending byte order, a directory before what it holds.
// In PATH and TARGET every byte outside "!" to "~", and "%", is written %XX with
// upper-case digits. No other spelling is accepted, so one tree has one digest.
//
// There are two checks. [Artifact.VerifyFull] reads everything; it is for
// import, start and diagnosis. [Artifact.VerifyIdentity] costs a few dozen
// system calls and is for each session: same inodes, owners and modes as when
// the artifact was opened, along a path that root alone can change.
//
// Everything on disk is reached descriptor by descriptor without following a
// symlink, and these are refused wherever they appear: entries that root does
// not own; device nodes, sockets and pipes; setuid, setgid and sticky bits; file
// capabilities; anything that group or others may write; hard links; mounts
// beneath the tree; and a /dev, /proc or /sys that is not a directory.
package artifact
