package seccomp

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Action is what becomes of a system call. The zero value is no action.
type Action uint32

// Actions.
const (
	// Allow lets the call happen.
	Allow Action = unix.SECCOMP_RET_ALLOW
	// Kill ends the whole process as if by SIGSYS.
	Kill Action = unix.SECCOMP_RET_KILL_PROCESS
)

// Fail makes the call fail with the error, without any effect.
func Fail(err unix.Errno) Action {
	return unix.SECCOMP_RET_ERRNO | Action(err)&unix.SECCOMP_RET_DATA
}

// Arch is an architecture whose system calls a filter is about. Both are
// little-endian.
type Arch struct {
	audit uint32 // linux/audit.h
	// foreign is the first number of another ABI's calls, or 0: the numbers of
	// x32 carry this bit and have AMD64's audit value.
	foreign uint32
}

// Architectures.
var (
	AMD64 = Arch{audit: unix.AUDIT_ARCH_X86_64, foreign: 0x40000000}
	ARM64 = Arch{audit: unix.AUDIT_ARCH_AARCH64}
)

// Arg is a condition on one argument: its bits under the mask are Value. A
// mask of 0 means all 64 bits.
type Arg struct {
	Index       int
	Mask, Value uint64
}

// Rule says what becomes of one system call if all conditions hold. Conditions
// can see no memory that a pointer points to.
type Rule struct {
	Number uintptr
	Action Action
	When   []Arg
}

// Filter is a list of rules, of which the first that applies counts.
type Filter struct {
	Rules []Rule
	// Default is for what no rule applies to.
	Default Action
}

// Rules makes one unconditional rule for each number.
func Rules(action Action, numbers ...uintptr) []Rule {
	rules := make([]Rule, len(numbers))
	for i, n := range numbers {
		rules[i] = Rule{Number: n, Action: action}
	}
	return rules
}

// Offsets in struct seccomp_data: the low half of an argument comes first.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// maxProgram is the kernel's limit, in instructions (BPF_MAXINSNS).
const maxProgram = 4096

// Assemble makes the program. A process of another architecture or ABI is
// killed, whatever the rules say.
func (f Filter) Assemble(a Arch) ([]unix.SockFilter, error) {
	p := []unix.SockFilter{
		load(offArch),
		skipIf(unix.BPF_JEQ, a.audit, 1, 0),
		end(Kill),
		load(offNumber),
	}
	if a.foreign != 0 {
		p = append(p, skipIf(unix.BPF_JGE, a.foreign, 0, 1), end(Kill))
	}
	for _, r := range f.Rules {
		body, err := r.assemble()
		if err != nil {
			return nil, err
		}
		p = append(p, skipIf(unix.BPF_JEQ, uint32(r.Number), 0, uint8(len(body))))
		p = append(p, body...)
	}
	if f.Default == 0 {
		return nil, fmt.Errorf("seccomp: the filter has no default")
	}
	if p = append(p, end(f.Default)); len(p) > maxProgram {
		return nil, fmt.Errorf("seccomp: the filter has %d instructions, the kernel takes %d", len(p), maxProgram)
	}
	return p, nil
}

// assemble makes what is done once the number is right.
func (r Rule) assemble() ([]unix.SockFilter, error) {
	if r.Action == 0 {
		return nil, fmt.Errorf("seccomp: the rule for call %d has no action", r.Number)
	}
	var tests []unix.SockFilter
	for _, arg := range r.When {
		if arg.Index < 0 || arg.Index > 5 || len(r.When) > 6 {
			return nil, fmt.Errorf("seccomp: call %d has no argument %d", r.Number, arg.Index)
		}
		if arg.Mask == 0 {
			arg.Mask = ^uint64(0)
		}
		at := uint32(offArgs + 8*arg.Index)
		for half := range uint32(2) {
			mask, value := uint32(arg.Mask>>(32*half)), uint32(arg.Value>>(32*half))
			// The jump to the end of the rule is set below.
			tests = append(tests, load(at+4*half), unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: mask}, skipIf(unix.BPF_JEQ, value, 0, 0))
		}
	}
	if len(tests) == 0 {
		return []unix.SockFilter{end(r.Action)}, nil
	}
	// A failed test goes on after the action, where the number is loaded again
	// for the rules that follow.
	for i := range tests {
		if tests[i].Code&0x07 == unix.BPF_JMP {
			tests[i].Jf = uint8(len(tests) - i)
		}
	}
	return append(tests, end(r.Action), load(offNumber)), nil
}

func load(at uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
}

func end(a Action) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: uint32(a)}
}

// skipIf skips yes instructions if the test holds, and no instructions if not.
func skipIf(test uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, Jt: yes, Jf: no, K: k}
}
