package session

import (
	"cmp"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/bundle"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/cgroup"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
)

// cgroup is the path of the session's cgroup. A broker before this one may have
// had its groups elsewhere.
func (s *session) cgroup() string { return cmp.Or(s.rec.Cgroup, s.m.Groups.Path(s.rec.Session)) }

func (s *session) limits(p *registry.Profile) bundle.Limits {
	return bundle.Limits{
		MemoryBytes: int64(p.Memory), CountSwap: s.m.Groups.CountsSwap(), CPUs: p.CPUs, PIDs: p.PIDs,
		OpenFiles: p.OpenFiles, TmpBytes: int64(p.Tmp),
	}
}

// verifyLimits fails closed: a sandbox without its limits is not started.
func (s *session) verifyLimits(pid int, l bundle.Limits) error {
	return s.m.Groups.Verify(s.cgroup(), pid, cgroup.Limits{
		MemoryBytes: l.MemoryBytes, Quota: l.CPUQuota(), Period: bundle.CPUPeriod, PIDs: l.PIDs,
	})
}
