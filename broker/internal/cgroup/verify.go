package cgroup

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Limits are what must be in force. Zero means that there is no limit.
type Limits struct {
	// MemoryBytes is of memory, and of memory and swap together.
	MemoryBytes int64
	// Quota is how many microseconds of CPU time there are in each Period.
	Quota, Period int64
	// PIDs is the number of threads.
	PIDs int64
}

// v1Files hold each controller's limit.
var v1Files = map[string]string{"cpu": "cpu.cfs_quota_us", "memory": "memory.limit_in_bytes", "pids": "pids.max"}

// Verify asks the kernel whether the limits are in force for the process, a
// sandbox's. That runsc was told is not enough: it leaves a group alone that
// was there before. Error: CodeLimitsUnavailable.
func (g *Groups) Verify(path string, pid int, l Limits) error {
	if l.PIDs > 0 {
		if err := g.check("pids", path, "pids.max", pid, strconv.FormatInt(l.PIDs, 10)); err != nil {
			return err
		}
	}
	if l.Quota > 0 {
		quota, period := strconv.FormatInt(l.Quota, 10), strconv.FormatInt(l.Period, 10)
		if g.v2 {
			quota += " " + period
		} else if err := g.check("cpu", path, "cpu.cfs_period_us", pid, period); err != nil {
			return err
		}
		if err := g.check("cpu", path, g.pick("cpu.cfs_quota_us", "cpu.max"), pid, quota); err != nil {
			return err
		}
	}
	if l.MemoryBytes <= 0 {
		return nil
	}
	// The kernel counts pages.
	memory := l.MemoryBytes &^ int64(os.Getpagesize()-1)
	allowed := strconv.FormatInt(memory, 10)
	if err := g.check("memory", path, g.pick("memory.limit_in_bytes", "memory.max"), pid, allowed); err != nil || !g.swap {
		return err
	}
	return g.check("memory", path, g.pick("memory.memsw.limit_in_bytes", "memory.swap.max"), pid, g.pick(allowed, "0"))
}

// check compares a limit, and looks for the process where it applies.
func (g *Groups) check(controller, path, file string, pid int, want string) error {
	got, err := os.ReadFile(g.file(controller, path, file))
	members, err2 := words(g.file(controller, path, "cgroup.procs"))
	switch text := strings.TrimSpace(string(got)); {
	case err != nil || err2 != nil:
		return notInForce(controller, errors.Join(err, err2))
	case text != want:
		return notInForce(controller, fmt.Errorf("%s of %s is %.40q, not %q", file, path, text, want))
	case !slices.Contains(members, strconv.Itoa(pid)):
		return notInForce(controller, fmt.Errorf("the sandbox, process %d, is not in %s", pid, path))
	}
	return nil
}

func notInForce(controller string, err error) error {
	return unavailable("the limit of "+controller+" is not in force", "have the operator look at the broker's log and run doctor", err)
}
