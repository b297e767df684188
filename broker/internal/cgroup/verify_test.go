package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// tree makes a tree of folders and files that looks like cgroups.
func tree(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		set(t, path, content)
	}
	return root
}

// limited checks for the code, and that the words are in the message.
func limited(t *testing.T, err error, words string) {
	t.Helper()
	var e *wire.Error
	if !errors.As(err, &e) || e.Code != wire.CodeLimitsUnavailable || e.Advice == "" || !strings.Contains(e.Message, words) {
		t.Errorf("got %v, want %s with %q", err, wire.CodeLimitsUnavailable, words)
	}
}

const (
	all     = "cpuset cpu io memory hugetlb pids rdma\n"
	enabled = "cpu memory pids\n"
)

// unified is a v2 tree as a session's parent finds it, with systemd or without.
func unified(base string) map[string]string {
	return map[string]string{
		"cgroup.controllers": all, "cgroup.subtree_control": enabled,
		base + "cgroup.controllers": enabled, base + "cgroup.subtree_control": enabled,
		base + "sessions/cgroup.subtree_control": enabled, base + "sessions/memory.swap.max": "max\n",
	}
}

// R34, R71: what is missing is named, in v1 and v2, and no session can be.
func TestMissingControllers(t *testing.T) {
	v1 := map[string]string{
		"cpu/cgroup.procs": "", "memory/cgroup.procs": "", "pids/cgroup.procs": "",
		"cpu/sessions/cpu.cfs_quota_us": "-1\n", "memory/sessions/memory.limit_in_bytes": "1\n", "pids/sessions/pids.max": "max\n",
	}
	for _, c := range []struct {
		name, remove, set, to, words string
		tree                         map[string]string
	}{
		{name: "v1", tree: v1},
		{name: "v1 without memory", remove: "memory/cgroup.procs", words: "controller memory", tree: v1},
		{name: "v1 without cpu", remove: "cpu/cgroup.procs", words: "controller cpu", tree: v1},
		{name: "v1 without pids", remove: "pids/cgroup.procs", words: "controller pids", tree: v1},
		{name: "v1 without bandwidth", remove: "cpu/sessions/cpu.cfs_quota_us", words: "cpu has no limits", tree: v1},
		{name: "v2", tree: unified("")},
		{name: "v2 without memory", set: "cgroup.controllers", to: "cpu pids\n", words: "controller memory", tree: unified("")},
		{name: "v2 without files", remove: "sessions/cgroup.subtree_control", words: "cpu can't be enabled", tree: unified("")},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := tree(t, c.tree)
			if c.set != "" {
				set(t, filepath.Join(root, c.set), c.to)
			}
			if c.remove != "" {
				if err := os.Remove(filepath.Join(root, c.remove)); err != nil {
					t.Fatal(err)
				}
			}
			g, err := open(root, "0::/", "/sessions")
			if c.words != "" {
				limited(t, err, c.words)
			} else if err != nil || g.Parent() != "/sessions" {
				t.Errorf("got %+v, %v", g, err)
			}
		})
	}
}

// R34: in v2 controllers are handed on from the parent's parent.
func TestEnablesControllers(t *testing.T) {
	files := unified("")
	files["cgroup.subtree_control"], files["sessions/cgroup.subtree_control"] = "cpu memory\n", ""
	root := tree(t, files)
	if _, err := open(root, "0::/", "/sessions"); err != nil {
		t.Fatal(err)
	}
	// A file keeps the last write; the kernel would add them up.
	for _, file := range []string{"cgroup.subtree_control", "sessions/cgroup.subtree_control"} {
		if b, err := os.ReadFile(filepath.Join(root, file)); err != nil || !strings.HasPrefix(string(b), "+pids") {
			t.Errorf("%s: %q, %v", file, b, err)
		}
	}
}

// R34: what systemd has delegated is used, if the broker is in a group below
// it, and nothing else of systemd's.
func TestDelegated(t *testing.T) {
	rootonly.Test(t)
	const unit = "/system.slice/broker.service"
	for name, c := range map[string]struct{ own, delegate, want string }{
		"delegated with a group":    {unit + "/broker", unit, unit + "/sessions"},
		"delegated, no group":       {unit, unit, "/sessions"},
		"not delegated":             {unit + "/broker", "", "/sessions"},
		"all is delegated":          {"/broker", "/", "/sessions"},
		"another one's is":          {"/system.slice/other.service/broker", unit, "/sessions"},
		"a path that leads outside": {"/../.." + unit + "/broker", unit, unit + "/sessions"},
	} {
		t.Run(name, func(t *testing.T) {
			files := unified(unit[1:] + "/")
			files["sessions/cgroup.subtree_control"] = enabled
			root := tree(t, files)
			if c.delegate != "" {
				if err := unix.Setxattr(root+c.delegate, "trusted.delegate", []byte("1"), 0); err != nil {
					t.Fatal(err)
				}
			}
			g, err := open(root, "1:name=systemd:/elsewhere\n0::"+c.own+"\n", "/sessions")
			if err != nil || g.Parent() != c.want {
				t.Errorf("got %+v, %v, want %s", g, err, c.want)
			}
		})
	}
	// It is delegated without what is needed.
	files := unified(unit[1:] + "/")
	files[unit[1:]+"/cgroup.controllers"] = "memory pids\n"
	root := tree(t, files)
	if err := unix.Setxattr(root+unit, "trusted.delegate", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	_, err := open(root, "0::"+unit+"/broker\n", "/sessions")
	limited(t, err, "controller cpu")
}

// R34: each limit that is not in force is found, in v2.
func TestVerifyUnified(t *testing.T) {
	const pid = 4711
	limits := Limits{MemoryBytes: 1<<30 + 1, Quota: 50_000, Period: 100_000, PIDs: 64}
	good := map[string]string{
		"memory.max": "1073741824\n", "memory.swap.max": "0\n", "cpu.max": "50000 100000\n", "pids.max": "64\n",
		"cgroup.procs": "17\n4711\n",
	}
	for name, bad := range map[string][2]string{
		"":                 {},
		"memory":           {"memory.max", "max\n"},
		"more memory":      {"memory.max", "1073745920\n"},
		"swap":             {"memory.swap.max", "max\n"},
		"cpu":              {"cpu.max", "max 100000\n"},
		"longer period":    {"cpu.max", "50000 50000\n"},
		"pids":             {"pids.max", "max\n"},
		"elsewhere":        {"cgroup.procs", "471\n47110\n"},
		"an empty file":    {"pids.max", ""},
		"a file not there": {"pids.max", "-"},
	} {
		t.Run(name, func(t *testing.T) {
			files := unified("")
			for file, content := range good {
				files["sessions/"+session+"/"+file] = content
			}
			if bad[0] != "" {
				files["sessions/"+session+"/"+bad[0]] = bad[1]
			}
			root := tree(t, files)
			if bad[1] == "-" {
				os.Remove(filepath.Join(root, "sessions", session, bad[0]))
			}
			g, err := open(root, "", "/sessions")
			if err != nil {
				t.Fatal(err)
			}
			if !g.CountsSwap() {
				t.Error("swap is not counted")
			}
			if err = g.Verify(g.Path(session), pid, limits); name == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			limited(t, err, "not in force")
			if e := (*wire.Error)(nil); errors.As(err, &e) && strings.Contains(e.Message+e.Advice, session) {
				t.Errorf("the client learns the path: %v", e)
			}
		})
	}
}

// R34: the kernel's own files say whether a limit is in force, for a process
// that is in the group.
func TestVerifyInForce(t *testing.T) {
	g := openGroups(t)
	path := makeGroup(t, g, strconv.Itoa(64<<20))
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	limits := Limits{MemoryBytes: 64<<20 + 100, Quota: 30_000, Period: 100_000, PIDs: 100}
	set(t, g.file("pids", path, "pids.max"), "100")
	set(t, g.file("cpu", path, g.pick("cpu.cfs_quota_us", "cpu.max")), "30000")
	if g.CountsSwap() {
		limited(t, g.Verify(path, cmd.Process.Pid, limits), "not in force")
		set(t, g.file("memory", path, g.pick("memory.memsw.limit_in_bytes", "memory.swap.max")), g.pick(strconv.Itoa(64<<20), "0"))
	}
	limited(t, g.Verify(path, cmd.Process.Pid, limits), "not in force") // it is not in the group
	for _, c := range controllers {
		set(t, g.file(c, path, "cgroup.procs"), strconv.Itoa(cmd.Process.Pid))
	}
	if err := g.Verify(path, cmd.Process.Pid, limits); err != nil {
		t.Error(err)
	}
	limits.PIDs++
	limited(t, g.Verify(path, cmd.Process.Pid, limits), "pids is not in force")
	if err := g.Verify(path, cmd.Process.Pid, Limits{}); err != nil {
		t.Errorf("no limit: %v", err)
	}
}
