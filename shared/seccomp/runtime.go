package seccomp

import "golang.org/x/sys/unix"

// threadFlags are those of clone(2) by which Go makes a thread of its process
// (runtime, cloneFlags), and libcFlags those that a C library adds.
const (
	threadFlags = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_SYSVSEM | unix.CLONE_THREAD
	libcFlags   = unix.CLONE_SETTLS | unix.CLONE_PARENT_SETTID | unix.CLONE_CHILD_CLEARTID
)

// Runtime returns what a running Go program does without its own doing:
// memory that can't be executed, threads, signals within the process, timers,
// the poller, and reading and writing of what is open.
func Runtime() []Rule {
	rules := Rules(Allow,
		unix.SYS_READ, unix.SYS_WRITE, unix.SYS_CLOSE, unix.SYS_FSTAT,
		unix.SYS_MUNMAP, unix.SYS_MADVISE,
		unix.SYS_FUTEX, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_RESTART_SYSCALL,
		unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK,
		unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_GETRANDOM,
		unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2,
		unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
	)
	// What it tries at its start, and can do without. clone3 hides its flags
	// behind a pointer; a C library falls back to clone.
	rules = append(rules, Rules(Fail(unix.ENOSYS), unix.SYS_CLONE3, unix.SYS_RSEQ)...)
	rules = append(rules, Rules(Fail(unix.EPERM), unix.SYS_OPENAT, unix.SYS_READLINKAT, unix.SYS_PRLIMIT64, unix.SYS_UNAME)...)
	return append(rules,
		Rule{Number: unix.SYS_MMAP, Action: Allow, When: []Arg{{Index: 2, Mask: unix.PROT_EXEC}}},
		Rule{Number: unix.SYS_CLONE, Action: Allow, When: []Arg{{Index: 0, Mask: ^uint64(libcFlags), Value: threadFlags}}},
		Rule{Number: unix.SYS_CLONE, Action: Fail(unix.EPERM)},
		// Names for memory, which some kernels lack: Go expects EINVAL.
		Rule{Number: unix.SYS_PRCTL, Action: Fail(unix.EINVAL), When: []Arg{{Index: 0, Value: unix.PR_SET_VMA}}},
	)
}

// Signals returns the rule by which the threads of the process pid signal each
// other: Go interrupts those that run for long.
func Signals(pid int) Rule {
	return Rule{Number: unix.SYS_TGKILL, Action: Allow, When: []Arg{{Index: 0, Value: uint64(pid)}}}
}
