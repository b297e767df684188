package rootfs

import (
	"fmt"
	"slices"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/bundle"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// Class is a kind of thing that a root file system may not have. It is stable.
type Class string

// The classes, in the order in which an import reports them.
const (
	ClassOwner        Class = "owner"
	ClassSetuid       Class = "setuid"
	ClassSetgid       Class = "setgid"
	ClassSticky       Class = "sticky"
	ClassWritable     Class = "writable"
	ClassCapabilities Class = "file_capabilities"
	ClassAttributes   Class = "attributes"
	ClassHardLink     Class = "hard_link"
	ClassDevice       Class = "device"
	ClassPipe         Class = "named_pipe"
	ClassSocket       Class = "socket"
	ClassDev          Class = "dev_entry"
	ClassPlace        Class = "mount_point"
	ClassDocker       Class = "docker_marker"
)

// word says of a class what is wrong with an entry, and what Normalize does.
type word struct {
	class     Class
	is, mends string
}

var words = []word{
	{ClassOwner, "does not belong to root", "owners set to root"},
	{ClassSetuid, "has the setuid bit", "setuid bits removed"},
	{ClassSetgid, "has the setgid bit", "setgid bits removed"},
	{ClassSticky, "has the sticky bit", "sticky bits removed"},
	{ClassWritable, "is writable by its group or by others", "write permission of group and others removed"},
	{ClassCapabilities, "has file capabilities", "file capabilities removed"},
	{ClassAttributes, "has extended attributes", "extended attributes removed"},
	{ClassHardLink, "is a hard link", "hard links made copies"},
	{ClassDevice, "is a device node", "device nodes left out"},
	{ClassPipe, "is a named pipe", "named pipes left out"},
	{ClassSocket, "is a socket", "sockets left out"},
	{ClassDev, "is below /dev, which must be empty", "entries below /dev left out"},
	{ClassPlace, "is a place where a session mounts something, and no folder", "entries in the place of a mount point left out"},
	{ClassDocker, "says that this is a container of Docker", "the file .dockerenv left out"},
}

// Change says what Normalize did to the entries of one class.
type Change struct {
	Class Class  `json:"class"`
	Did   string `json:"did"`
	Count int    `json:"count"`
	First string `json:"first"` // the name of the first one
}

// policy decides what becomes of entries that an artifact may not hold.
type policy struct {
	normalize bool
	found     map[Class]*Change
}

// mend notes that an entry needs a change, or refuses it.
func (p *policy) mend(class Class, name string) error {
	w := words[slices.IndexFunc(words, func(w word) bool { return w.class == class })]
	if !p.normalize {
		return &wire.Error{
			Code: CodeForbidden, Message: fmt.Sprintf("%.200q %s", name, w.is),
			Advice: "mend it in the source, or import with --normalize (" + w.mends + ", and counted); nothing was imported",
		}
	}
	if p.found[class] == nil {
		p.found[class] = &Change{Class: class, Did: w.mends, First: name}
	}
	p.found[class].Count++
	return nil
}

// changes lists what was mended.
func (p *policy) changes() []Change {
	all := []Change{}
	for _, w := range words {
		if c := p.found[w.class]; c != nil {
			all = append(all, *c)
		}
	}
	return all
}

// apply makes the entry one that an artifact may hold, or says that it is to
// be left out, or refuses it.
func (p *policy) apply(n *node) (keep bool, err error) {
	switch {
	case strings.HasPrefix(n.name, "dev/"):
		return false, p.mend(ClassDev, n.name)
	case n.kind == kindSpecial:
		return false, p.mend(n.special, n.name)
	case mustBeFolders[n.name] && n.kind != kindDir:
		return false, p.mend(ClassPlace, n.name)
	case p.normalize && n.name == ".dockerenv":
		return false, p.mend(ClassDocker, n.name)
	}
	type rule struct {
		applies bool
		class   Class
	}
	hasMode := n.kind == kindDir || n.kind == kindFile
	for _, r := range []rule{
		{n.foreign, ClassOwner},
		{n.capabilities, ClassCapabilities},
		{n.attributes, ClassAttributes},
		{n.linked || n.kind == kindHardLink, ClassHardLink},
		{hasMode && n.mode&unix.S_ISUID != 0, ClassSetuid},
		{hasMode && n.mode&unix.S_ISGID != 0, ClassSetgid},
		{hasMode && n.mode&unix.S_ISVTX != 0, ClassSticky},
		{hasMode && n.mode&0o022 != 0, ClassWritable},
	} {
		if r.applies {
			if err := p.mend(r.class, n.name); err != nil {
				return false, err
			}
		}
	}
	n.mode &= 0o755
	return true, nil
}

// mountPoints are where every session mounts something, in the order of their
// making, relative to the tree. A folder that is missing would be made by
// runsc in the tree, which is read-only.
var mountPoints = func() []string {
	var all []string
	for _, m := range bundle.Build(bundle.Session{AttachmentsDir: "/any"}).Mounts {
		place := strings.TrimPrefix(m.Destination, "/")
		for i := range len(place) {
			if place[i] == '/' {
				all = append(all, place[:i])
			}
		}
		all = append(all, place)
	}
	return all
}()

var mustBeFolders = func() map[string]bool {
	m := make(map[string]bool)
	for _, place := range mountPoints {
		m[place] = true
	}
	return m
}()
