package confine

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Places in the data that a filter sees (seccomp(2), struct seccomp_data). Both
// architectures are little-endian: the low half of an argument comes first.
const (
	atNumber = 0
	atArch   = 4
	atFlags  = 16
)

// Actions.
const (
	allow = unix.SECCOMP_RET_ALLOW
	kill  = unix.SECCOMP_RET_KILL_PROCESS
	deny  = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	// absent makes C libraries fall back to clone(2), whose flags a filter
	// can see.
	absent = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
)

// stayAlone lets no thread of the process make another process, or become
// another program. A bridge is replaced once it is seen to be dead, and its
// user is given to a later session's bridge: a child of one that was taken
// over would go on with its descriptors, and could meet that later one.
func stayAlone() error {
	program := filter()
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	tid, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&f)))
	switch {
	case errno != 0:
		return errno
	case tid != 0:
		return unix.EBUSY // a thread has a filter of its own
	}
	return nil
}

func filter() []unix.SockFilter {
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	end := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	// onlyIf goes on with the next instruction if the test holds, and
	// otherwise with the one after that.
	onlyIf := func(test uint16, k uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, Jf: 1, K: k}
	}
	p := []unix.SockFilter{
		load(atArch),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: auditArch},
		end(kill),
		load(atNumber),
	}
	if otherABI != 0 {
		p = append(p, onlyIf(unix.BPF_JGE, otherABI), end(kill))
	}
	for _, number := range forbidden {
		p = append(p, onlyIf(unix.BPF_JEQ, number), end(deny))
	}
	return append(p,
		onlyIf(unix.BPF_JEQ, unix.SYS_CLONE3), end(absent),
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: unix.SYS_CLONE},
		end(allow),
		load(atFlags),
		onlyIf(unix.BPF_JSET, unix.CLONE_THREAD), end(allow),
		end(deny),
	)
}
