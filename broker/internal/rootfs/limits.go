package rootfs

import "git.jb.codes/jb/paseo-sandbox/shared/artifact"

// limits bound what one import may use. They are far above any root file
// system for an agent, and low enough that an archive made to fill a disk or
// the memory is stopped early.
type limits struct {
	// entries is what an artifact may have at most.
	entries int
	// bytes bounds the files together, copies of hard links included. An image
	// with a desktop in it has less than 10 GiB.
	bytes int64
	// names bounds all names and link targets together, which are held in
	// memory. In the manifest a byte may take three, and it may have 64 MiB.
	names int64
	// header bounds what an archive may have between the contents of two
	// entries: extended headers of 1 MiB each, which archive/tar reads whole,
	// as many as there are kinds of them.
	header int64
	// attributes bounds one entry's extended header, in bytes. Linux allows
	// attributes of 64 KiB (xattr(7)).
	attributes int
	// trailer bounds the zeros after the end of an archive. GNU tar fills up
	// to a record of 10 KiB by default, and 1 MiB with a large blocking factor.
	trailer int64
	// ratio is how many bytes a compressed one may become, once ratioFrom have
	// come out. Deflate reaches 1032 for zeros; a root file system has 2 to 5.
	ratio, ratioFrom int64
}

var defaults = limits{
	entries:    artifact.MaxEntries,
	bytes:      16 << 30,
	names:      16 << 20,
	header:     4 << 20,
	attributes: 64 << 10,
	trailer:    1 << 20,
	ratio:      100,
	ratioFrom:  64 << 20,
}

// maxName is the length of one component of a path, in bytes (NAME_MAX).
const maxName = 255
