package seccomp

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// call is what the kernel shows a filter (struct seccomp_data).
type call struct {
	number, arch uint32
	args         [6]uint64
}

func (c call) bytes() []byte {
	b := make([]byte, 64)
	binary.LittleEndian.PutUint32(b[0:], c.number)
	binary.LittleEndian.PutUint32(b[4:], c.arch)
	for i, a := range c.args {
		binary.LittleEndian.PutUint64(b[16+8*i:], a)
	}
	return b
}

// interpret runs a program as the kernel does (bpf(4) of the BSDs, seccomp(2)).
func interpret(t *testing.T, program []unix.SockFilter, c call) Action {
	t.Helper()
	data, a := c.bytes(), uint32(0)
	for at := 0; at < len(program); at++ {
		in := program[at]
		jump := false
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = binary.LittleEndian.Uint32(data[in.K:])
			continue
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= in.K
			continue
		case unix.BPF_RET | unix.BPF_K:
			return Action(in.K)
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump = a == in.K
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump = a >= in.K
		default:
			t.Fatalf("instruction %d has the code %#x", at, in.Code)
		}
		if jump {
			at += int(in.Jt)
		} else {
			at += int(in.Jf)
		}
	}
	t.Fatal("the program has no end")
	return 0
}

// R3: the first rule that applies counts, conditions see all 64 bits, and
// another ABI is the end.
func TestFilter(t *testing.T) {
	denied := Fail(unix.EPERM)
	other := Fail(unix.EACCES)
	f := Filter{Default: other, Rules: append(Rules(Allow, 1, 2),
		Rule{Number: 3, Action: Allow, When: []Arg{{Index: 1, Value: 0x1_0000_0005}}},
		Rule{Number: 3, Action: denied, When: []Arg{{Index: 1, Value: 6}, {Index: 2, Value: 7}}},
		Rule{Number: 4, Action: Allow, When: []Arg{{Index: 5, Mask: 4, Value: 0}}},
		Rule{Number: 4, Action: Fail(unix.ENOSYS)},
		Rule{Number: 5, Action: denied},
	)}
	const amd, arm = unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_AARCH64
	for _, c := range []struct {
		name string
		on   Arch
		call call
		want Action
	}{
		{"listed", AMD64, call{number: 1, arch: amd}, Allow},
		{"listed second", AMD64, call{number: 2, arch: amd}, Allow},
		{"not listed", AMD64, call{number: 0, arch: amd}, other},
		{"not listed, high", AMD64, call{number: 450, arch: amd}, other},
		{"i386", AMD64, call{number: 1, arch: unix.AUDIT_ARCH_I386}, Kill},
		{"arm on amd64", AMD64, call{number: 1, arch: arm}, Kill},
		{"x32", AMD64, call{number: 1 | 0x40000000, arch: amd}, Kill},
		{"minus one", AMD64, call{number: 0xffffffff, arch: amd}, Kill},
		{"arm64", ARM64, call{number: 1, arch: arm}, Allow},
		{"arm64, not listed", ARM64, call{number: 9, arch: arm}, other},
		{"32-bit arm", ARM64, call{number: 1, arch: unix.AUDIT_ARCH_ARM}, Kill},
		{"amd64 on arm", ARM64, call{number: 1, arch: amd}, Kill},
		{"both halves", AMD64, call{number: 3, arch: amd, args: [6]uint64{0, 0x1_0000_0005}}, Allow},
		{"low half alone", AMD64, call{number: 3, arch: amd, args: [6]uint64{0, 5}}, other},
		{"high half alone", AMD64, call{number: 3, arch: amd, args: [6]uint64{0, 0x1_0000_0000}}, other},
		{"another argument", AMD64, call{number: 3, arch: amd, args: [6]uint64{0x1_0000_0005}}, other},
		{"second rule", AMD64, call{number: 3, arch: amd, args: [6]uint64{0, 6, 7}}, denied},
		{"half of the second rule", AMD64, call{number: 3, arch: amd, args: [6]uint64{0, 6, 8}}, other},
		{"masked", AMD64, call{number: 4, arch: amd, args: [6]uint64{5: ^uint64(4)}}, Allow},
		{"masked, set", AMD64, call{number: 4, arch: amd, args: [6]uint64{5: 4}}, Fail(unix.ENOSYS)},
		{"after conditions", AMD64, call{number: 5, arch: amd}, denied},
	} {
		program, err := f.Assemble(c.on)
		if err != nil {
			t.Fatal(err)
		}
		if got := interpret(t, program, c.call); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.name, got, c.want)
		}
	}
}

// A filter that says nothing where it must say something is refused.
func TestRefusals(t *testing.T) {
	for name, f := range map[string]Filter{
		"no default":     {},
		"no action":      {Default: Kill, Rules: []Rule{{Number: 1}}},
		"no such args":   {Default: Kill, Rules: []Rule{{Number: 1, Action: Allow, When: []Arg{{Index: 6}}}}},
		"negative args":  {Default: Kill, Rules: []Rule{{Number: 1, Action: Allow, When: []Arg{{Index: -1}}}}},
		"too many rules": {Default: Kill, Rules: Rules(Allow, make([]uintptr, 3000)...)},
	} {
		if _, err := f.Assemble(AMD64); err == nil {
			t.Errorf("%s: assembled", name)
		}
	}
	if got := Fail(unix.EPERM); got != unix.SECCOMP_RET_ERRNO|1 {
		t.Errorf("EPERM is %#x", got)
	}
}
