package privilege

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// needed are the capabilities that stay, and what for.
var needed = []struct {
	number uint
	name   string
}{
	{unix.CAP_CHOWN, "CHOWN"},                     // spool, state, sockets; the gofer
	{unix.CAP_DAC_OVERRIDE, "DAC_OVERRIDE"},       // what agents left; the gofer
	{unix.CAP_DAC_READ_SEARCH, "DAC_READ_SEARCH"}, // the gofer
	{unix.CAP_FOWNER, "FOWNER"},                   // the gofer
	{unix.CAP_FSETID, "FSETID"},                   // the gofer
	{unix.CAP_SYS_CHROOT, "SYS_CHROOT"},           // the gofer
	{unix.CAP_KILL, "KILL"},                       // bridges, reapers, sandboxes
	{unix.CAP_SETUID, "SETUID"},                   // bridges, reapers, sandboxes
	{unix.CAP_SETGID, "SETGID"},
	{unix.CAP_SETPCAP, "SETPCAP"},     // to empty the bounding sets of bridges and reapers
	{unix.CAP_SYS_ADMIN, "SYS_ADMIN"}, // mounts and namespaces
	{unix.CAP_SYS_NICE, "SYS_NICE"},   // the cpuset of a cgroup v2
}

// sets are the five sets of one thread, as bits.
type sets struct {
	effective, permitted, inheritable, bounding, ambient uint64
}

// Confine makes sure that this process and all that it starts have, and can
// get, the needed capabilities and no other. Unless it is so already, it
// executes the program again, as the same process with the same arguments,
// environment and descriptors, and does not return: the sets are a thread's
// own, and only at exec one thread's become those of all. Call it first in
// main, before descriptors are made close-on-exec. Error: CodeRootRequired for
// a capability that is missing.
//
// It can't go round in circles: it executes only once the thread's sets are
// right. Exec keeps the bounding set, and the inheritable and ambient ones
// empty, so the second time only a missing capability is left to be found.
func Confine() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	have, err := read()
	if err != nil {
		return err
	}
	var want uint64
	var missing []string
	for _, n := range needed {
		want |= 1 << n.number
		if have.permitted&have.bounding&(1<<n.number) == 0 {
			missing = append(missing, "CAP_"+n.name)
		}
	}
	if len(missing) > 0 {
		return &wire.Error{
			Code: wire.CodeRootRequired, Message: "the broker lacks " + strings.Join(missing, ", "),
			Advice: "start it as root, from a unit whose CapabilityBoundingSet= has them",
		}
	}
	wanted := sets{effective: want, permitted: want, bounding: want}
	if have == wanted {
		return setName()
	}
	if err := keep(want, have.bounding); err != nil {
		return err
	}
	if have, err = read(); err != nil || have != wanted {
		return errors.Join(fmt.Errorf("the capabilities are %+v, not %+v", have, wanted), err)
	}
	return fmt.Errorf("execute our own binary again: %w", unix.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// setName gives back the name that operators see: at exec the kernel took that
// of the link.
func setName() error {
	name, err := unix.BytePtrFromString(filepath.Base(os.Args[0]))
	if err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0)
}

// keep drops all but the wanted capabilities from every set of this thread.
func keep(want, bounding uint64) error {
	for c := range 64 {
		if bounding&^want&(1<<c) == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d for good: %w", c, err)
		}
	}
	// What is not inheritable is not ambient either.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{
		{Effective: uint32(want), Permitted: uint32(want)},
		{Effective: uint32(want >> 32), Permitted: uint32(want >> 32)},
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}

// read asks the kernel for the sets of this thread.
func read() (sets, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return sets{}, fmt.Errorf("read the capabilities: %w", err)
	}
	s := sets{
		effective:   uint64(data[1].Effective)<<32 | uint64(data[0].Effective),
		permitted:   uint64(data[1].Permitted)<<32 | uint64(data[0].Permitted),
		inheritable: uint64(data[1].Inheritable)<<32 | uint64(data[0].Inheritable),
	}
	for c := range 64 {
		in, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if err != nil {
			break // beyond the last capability of this kernel
		}
		s.bounding |= uint64(in) << c
		raised, err := unix.PrctlRetInt(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_IS_SET, uintptr(c), 0, 0)
		if err != nil {
			return sets{}, fmt.Errorf("read the ambient capabilities: %w", err)
		}
		s.ambient |= uint64(raised) << c
	}
	return s, nil
}
