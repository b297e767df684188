package bundle

import (
	"strconv"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Session is all that differs between the bundles of two sessions. Every value
// comes from the registry or was made by the broker; what the client said
// reaches it only as Command, which PiCommand makes.
type Session struct {
	ID wire.SessionID
	// Rootfs is the host path of the root file system.
	Rootfs  string
	Command []string
	Env     []string
	UID     uint32
	GID     uint32
	// Workspace is the path of the pinned workspace; ReadOnly says how it is
	// mounted.
	Workspace string
	ReadOnly  bool
	// StateDir is the host folder that becomes /home/agent, writable.
	StateDir string
	// AttachmentsDir is the host folder that becomes /attachments, read-only;
	// empty means none.
	AttachmentsDir string
	// Files appear read-only at places in the home, which exist already.
	Files []File
	// CgroupPath is the path of the cgroup in its hierarchies; empty leaves
	// the sandbox in the cgroup of the broker, without limits.
	CgroupPath string
	Limits     Limits
	Hostname   string
}

// File is a host file, and its absolute path inside.
type File struct{ Source, Destination string }

// Limits are what a session may use. Zero means no limit.
type Limits struct {
	// MemoryBytes bounds the sandbox with everything in it, in bytes.
	MemoryBytes int64
	// CountSwap says that the kernel can count swap as memory.
	CountSwap bool
	// CPUs is how many CPUs' time it gets; 0.5 is half of one.
	CPUs float64
	// PIDs bounds the host's threads of the sandbox.
	PIDs int64
	// OpenFiles is RLIMIT_NOFILE inside the sandbox.
	OpenFiles uint64
	// TmpBytes is the size of /tmp, in bytes.
	TmpBytes int64
}

// Build returns the configuration: a read-only root, no capability, no new
// privileges, fixed mounts, a seccomp filter, no annotation, hook or device.
// Masked and read-only paths are left out because runsc ignores them; its /proc
// has none of the files that are masked elsewhere.
func Build(s Session) *specs.Spec {
	return &specs.Spec{
		Version:  specs.Version,
		Hostname: s.Hostname,
		Root:     &specs.Root{Path: s.Rootfs, Readonly: true},
		Process: &specs.Process{
			User:            specs.User{UID: s.UID, GID: s.GID},
			Args:            s.Command,
			Env:             s.Env,
			Cwd:             WorkspaceDir,
			Capabilities:    &specs.LinuxCapabilities{},
			NoNewPrivileges: true,
			Rlimits:         rlimits(s.Limits),
		},
		Mounts: mounts(s),
		Linux: &specs.Linux{
			CgroupsPath: s.CgroupPath,
			Seccomp:     seccomp(),
			Resources:   resources(s),
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
				{Type: specs.MountNamespace}, {Type: specs.NetworkNamespace},
			},
		},
	}
}

// Places inside a sandbox. The root file system has each as a folder: runsc
// makes a missing one in the host's copy.
const (
	WorkspaceDir   = "/workspace"
	HomeDir        = "/home/agent"
	AttachmentsDir = "/attachments"
)

func mounts(s Session) []specs.Mount {
	workspace := "rw"
	if s.ReadOnly {
		workspace = "ro"
	}
	tmp := []string{"nosuid", "nodev", "mode=1777"}
	if s.Limits.TmpBytes > 0 {
		tmp = append(tmp, "size="+strconv.FormatInt(s.Limits.TmpBytes, 10))
	}
	m := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "mode=755"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/run", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=755", "size=1m"}},
		{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: tmp},
		bind(WorkspaceDir, s.Workspace, workspace),
		bind(HomeDir, s.StateDir, "rw"),
	}
	if s.AttachmentsDir != "" {
		m = append(m, bind(AttachmentsDir, s.AttachmentsDir, "ro", "noexec"))
	}
	for _, f := range s.Files {
		m = append(m, bind(f.Destination, f.Source, "ro"))
	}
	return m
}

// bind shows a host folder and nothing that is mounted beneath it, and lets no
// later mount through.
func bind(to, from string, options ...string) specs.Mount {
	options = append([]string{"bind", "rprivate", "nosuid", "nodev"}, options...)
	return specs.Mount{Destination: to, Type: "bind", Source: from, Options: options}
}

func rlimits(l Limits) []specs.POSIXRlimit {
	limits := []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}}
	if l.OpenFiles > 0 {
		limits = append(limits, specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Hard: l.OpenFiles, Soft: l.OpenFiles})
	}
	if l.PIDs > 0 {
		n := l.processes()
		limits = append(limits, specs.POSIXRlimit{Type: "RLIMIT_NPROC", Hard: n, Soft: n})
	}
	return limits
}

// A process in a sandbox takes up to threadsEach threads of the host, and the
// sandbox itself some ownThreads on few CPUs (measured).
const (
	threadsEach = 2
	ownThreads  = 48
)

// processes is how many threads the agent may have: so few that the sandbox,
// which would die of it, is not refused one by the host.
func (l Limits) processes() uint64 { return uint64(max(l.PIDs-ownThreads, threadsEach) / threadsEach) }

// CPUPeriod is the length of a scheduling period, in microseconds.
const CPUPeriod = 100_000

// CPUQuota is the CPU time in each period, in microseconds.
func (l Limits) CPUQuota() int64 { return int64(l.CPUs * CPUPeriod) }

func resources(s Session) *specs.LinuxResources {
	if s.CgroupPath == "" {
		return nil
	}
	r := &specs.LinuxResources{}
	if memory := s.Limits.MemoryBytes; memory > 0 {
		r.Memory = &specs.LinuxMemory{Limit: &memory}
		if s.Limits.CountSwap {
			r.Memory.Swap = &memory // of memory and swap together
		}
	}
	if s.Limits.CPUs > 0 {
		quota, period := s.Limits.CPUQuota(), uint64(CPUPeriod)
		r.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	if pids := s.Limits.PIDs; pids > 0 {
		r.Pids = &specs.LinuxPids{Limit: &pids}
	}
	return r
}
