package registry

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

const brokerTOML = `[runsc]
path = "/opt/runsc"
manifest = "/opt/runsc.manifest"
digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
[rootfs]
path = "/opt/rootfs"
manifest = "/opt/rootfs.manifest"
digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
[bridge]
first_uid = 2000000
uid_count = 100
`

const deploymentTOML = `peer_uids = [1000]
default_profile = "pi"
[workspaces.project]
root = "/srv/project"
uid = 1000
gid = 1000
[profiles.pi]
kind = "pi"
[profiles.cat]
kind = "program"
framing = "lines"
command = ["/bin/cat"]
memory = "2GiB"
max_input = 4096
`

// newEtc makes a valid configuration.
func newEtc(t *testing.T) layout.Layout {
	t.Helper()
	rootonly.Test(t)
	prefix, err := os.MkdirTemp("", "reg-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(prefix) })
	l, err := layout.At(prefix)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(l.Etc+"/deployments", 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, l.Etc+"/broker.toml", brokerTOML)
	write(t, l.Etc+"/deployments/local.toml", deploymentTOML)
	return l
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// R12: what is registered is read, and defaults are filled in.
func TestLoad(t *testing.T) {
	c, err := Load(newEtc(t))
	if err != nil {
		t.Fatal(err)
	}
	d := c.Deployments["local"]
	pi, cat := d.Profiles["pi"], d.Profiles["cat"]
	for what, ok := range map[string]bool{
		"rootfs":        c.Rootfs.Path == "/opt/rootfs",
		"peer":          len(d.PeerUIDs) == 1 && d.PeerUIDs[0] == 1000,
		"workspace":     *d.Workspaces["project"] == Workspace{Root: "/srv/project", UID: 1000, GID: 1000},
		"sessions":      d.MaxSessions == 16,
		"pi framing":    pi.Framing == wire.FramingPi,
		"pi input":      pi.MaxInput == 4*MiB,
		"pi memory":     pi.Memory == GiB && pi.PIDs == 512 && pi.Spool == 256*MiB && pi.MaxRecord == 128*MiB && pi.Overflow == wire.OverflowBackpressure,
		"cat memory":    cat.Memory == 2*GiB,
		"cat max_input": cat.MaxInput == 4096,
	} {
		if !ok {
			t.Errorf("%s is wrong: %+v %+v %+v", what, d, pi, cat)
		}
	}
}

// R12, R14: every mistake is refused, by file and line or key.
func TestRefusals(t *testing.T) {
	broker := func(old, new string) func(*testing.T, layout.Layout) {
		return func(t *testing.T, l layout.Layout) {
			write(t, l.Etc+"/broker.toml", replaced(t, brokerTOML, old, new))
		}
	}
	local := func(old, new string) func(*testing.T, layout.Layout) {
		return func(t *testing.T, l layout.Layout) {
			write(t, l.Etc+"/deployments/local.toml", replaced(t, deploymentTOML, old, new))
		}
	}
	do := func(f func(l layout.Layout) error) func(*testing.T, layout.Layout) {
		return func(t *testing.T, l layout.Layout) {
			if err := f(l); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		do   func(*testing.T, layout.Layout)
		says string
	}{
		"unknown key":            {broker("[rootfs]", "[rootfs]\ncolour = 1"), "broker.toml:6: the key rootfs.colour"},
		"unknown table":          {broker("[bridge]", "[dock]\n[bridge]"), "broker.toml:9: the key dock"},
		"broken syntax":          {broker("[bridge]", "[bridge"), "broker.toml:9"},
		"wrong type":             {broker("uid_count = 100", "uid_count = \"many\""), "broker.toml:11"},
		"digest":                 {broker("sha256:0", "sha512:0"), "runsc.digest"},
		"relative path":          {broker(`"/opt/rootfs"`, `"rootfs"`), "rootfs.path"},
		"no manifest":            {broker(`manifest = "/opt/runsc.manifest"`, ""), "runsc.manifest"},
		"bridge as root":         {broker("first_uid = 2000000", "first_uid = 0"), "bridge.first_uid"},
		"no uids":                {broker("uid_count = 100", ""), "bridge.uid_count"},
		"uids with nobody":       {broker("first_uid = 2000000", "first_uid = 65500"), "bridge.uid_count"},
		"uids beyond":            {broker("first_uid = 2000000", "first_uid = 4294967290"), "bridge.uid_count"},
		"unknown deployment key": {local("[workspaces.project]", "[workspaces.project]\nmount = \"/\""), "local.toml:4: the key workspaces.project.mount"},
		"nobody may use it":      {local("[1000]", "[]"), "peer_uids"},
		"a bridge may use it":    {local("[1000]", "[2000001]"), "peer_uids"},
		"sessions":               {local("default_profile", "max_sessions = 51\ndefault_profile"), "max_sessions"},
		"sessions of all":        {broker("uid_count = 100", "uid_count = 31"), "bridge.uid_count"},
		"network":                {local("default_profile", "network = \"host\"\ndefault_profile"), "network"},
		"audit without a file":   {broker("[bridge]", "[audit]\nfiles = 3\n[bridge]"), "audit"},
		"audit relative":         {broker("[bridge]", "[audit]\nfile = \"audit.log\"\n[bridge]"), "audit.file"},
		"audit of one file":      {broker("[bridge]", "[audit]\nfile = \"/var/log/a\"\nfiles = 1\n[bridge]"), "audit.files"},
		"audit too small":        {broker("[bridge]", "[audit]\nfile = \"/var/log/a\"\nmax_size = 4096\n[bridge]"), "audit.max_size"},
		"client path":            {local("gid = 1000", "gid = 1000\nclient_path = \"workspace\""), "workspaces.project.client_path"},
		"credential file":        {local("[profiles.pi]", "[credentials.key]\nfile = \"key\"\nas = \"auth.json\"\n[profiles.pi]"), "credentials.key.file"},
		"credential name":        {local("[profiles.pi]", "[credentials.key]\nfile = \"/etc/key\"\nas = \"../auth.json\"\n[profiles.pi]"), "credentials.key.as"},
		"credential twice":       {local("[profiles.pi]", "[credentials.key]\nfile = \"/etc/key\"\nas = \"a\"\n[credentials.l]\nfile = \"/etc/l\"\nas = \"a\"\n[profiles.pi]"), "credentials.l.as"},
		"unattached":             {local(`memory = "2GiB"`, `unattached = "kill"`), "profiles.cat.unattached"},
		"period without unit":    {local(`memory = "2GiB"`, `end_abandoned = "72"`), "local.toml:13: profiles.cat.end_abandoned"},
		"period below a second":  {local(`memory = "2GiB"`, `delete_ended = "999ms"`), "local.toml:13: profiles.cat.delete_ended"},
		"period of nothing":      {local(`memory = "2GiB"`, `delete_ended = "0s"`), "local.toml:13: profiles.cat.delete_ended"},
		"little for spools":      {local("default_profile", "spool_total = \"100MiB\"\ndefault_profile"), "spool_total: 104857600 bytes are too few for one session of the profile cat"},
		"spools above all":       {local("default_profile", "spool_total = \"8388608GiB\"\ndefault_profile"), "spool_total"},
		"small home":             {local(`memory = "2GiB"`, `state = "1MiB"`), "profiles.cat.state"},
		"no default":             {local(`default_profile = "pi"`, `default_profile = "po"`), "default_profile"},
		"root as agent":          {local("uid = 1000", "uid = 0"), "workspaces.project.uid"},
		"bridge as agent":        {local("uid = 1000", "uid = 2000000"), "workspaces.project.uid"},
		"no group":               {local("gid = 1000", ""), "workspaces.project.gid"},
		"relative root":          {local("/srv/project", "srv/project"), "workspaces.project.root"},
		"dots in root":           {local("/srv/project", "/srv/../etc"), "workspaces.project.root"},
		"the host's root":        {local("/srv/project", "/"), "workspaces.project.root"},
		"root holds ours":        {func(t *testing.T, l layout.Layout) { local("/srv/project", filepath.Dir(l.Var))(t, l) }, "overlaps"},
		"root in ours":           {func(t *testing.T, l layout.Layout) { local("/srv/project", l.Var+"/state")(t, l) }, "overlaps"},
		"root is ours":           {func(t *testing.T, l layout.Layout) { local("/srv/project", l.Etc)(t, l) }, "overlaps"},
		"root in the kernel's":   {local("/srv/project", "/sys/fs/cgroup"), "workspaces.project.root: \"/sys/fs/cgroup\" overlaps \"/sys\""},
		"root in processes":      {local("/srv/project", "/proc/1"), "overlaps \"/proc\""},
		"root in devices":        {local("/srv/project", "/dev/shm"), "overlaps \"/dev\""},
		"root holds runsc":       {local("/srv/project", "/opt"), "overlaps \"/opt/runsc\""},
		"root in the rootfs":     {local("/srv/project", "/opt/rootfs/tmp"), "overlaps \"/opt/rootfs\""},
		"root holds the audit":   {broker("[bridge]", "[audit]\nfile = \"/srv/project/log/audit\"\n[bridge]"), "overlaps \"/srv/project/log/audit\""},
		"root holds a key":       {local("[profiles.pi]", "[credentials.key]\nfile = \"/srv/project/.key\"\nas = \"auth.json\"\n[profiles.pi]"), "overlaps \"/srv/project/.key\""},
		"root holds the bridge":  {broker("[bridge]", "[bridge]\npath = \"/srv/project/bin/bridge\""), "overlaps \"/srv/project/bin/bridge\""},
		"client path twice":      {local("[workspaces.project]", "[workspaces.a]\nroot = \"/srv/a\"\nuid = 1000\ngid = 1000\nclient_path = \"/w\"\n[workspaces.project]\nclient_path = \"/w\""), "workspaces.project.client_path"},
		"client path not clean":  {local("gid = 1000", "gid = 1000\nclient_path = \"/workspace/\""), "workspaces.project.client_path"},
		"workspace name":         {local("[workspaces.project]", `[workspaces."../x"]`), "not a name"},
		"profile name":           {local("[profiles.cat]", `[profiles."a b"]`), "not a name"},
		"kind":                   {local(`kind = "program"`, `kind = "docker"`), "profiles.cat.kind"},
		"command of pi":          {local(`kind = "pi"`, "kind = \"pi\"\ncommand = [\"/bin/sh\"]"), "profiles.pi"},
		"no command":             {local(`command = ["/bin/cat"]`, ""), "profiles.cat.command"},
		"relative command":       {local(`"/bin/cat"`, `"cat"`), "profiles.cat.command"},
		"NUL in command":         {local(`["/bin/cat"]`, `["/bin/cat", "\u0000"]`), "profiles.cat.command"},
		"no framing":             {local(`framing = "lines"`, ""), "profiles.cat.framing"},
		"overflow":               {local(`framing = "lines"`, "framing = \"lines\"\noverflow = \"drop\""), "profiles.cat.overflow"},
		"spool below record":     {local(`memory = "2GiB"`, `spool = "128MiB"`), "profiles.cat.spool"},
		"spool without reserve":  {local(`memory = "2GiB"`, "spool = \"31MiB\"\nmax_record = \"16MiB\""), "profiles.cat.spool"},
		"record overflows":       {local(`memory = "2GiB"`, `max_record = "8589934591GiB"`), "profiles.cat.spool"},
		"size":                   {local(`"2GiB"`, `"2GB"`), "local.toml:13"},
		"size above all":         {local(`"2GiB"`, `"8589934592GiB"`), "local.toml:13"},
		"little memory":          {local(`"2GiB"`, `"1MiB"`), "profiles.cat.memory"},
		"cpus":                   {local(`memory = "2GiB"`, `cpus = nan`), "profiles.cat.cpus"},
		"pids":                   {local(`memory = "2GiB"`, `pids = -1`), "profiles.cat.pids"},
		"no file":                {do(func(l layout.Layout) error { return os.Remove(l.Etc + "/broker.toml") }), "does not exist"},
		"no folder":              {do(func(l layout.Layout) error { return os.RemoveAll(l.Etc) }), "does not exist"},
		"no deployment":          {do(func(l layout.Layout) error { return os.Remove(l.Etc + "/deployments/local.toml") }), "there is no deployment"},
		"file of another":        {do(func(l layout.Layout) error { return os.Chown(l.Etc+"/broker.toml", 1000, 0) }), "belongs to uid 1000"},
		"file for a group":       {do(func(l layout.Layout) error { return os.Chmod(l.Etc+"/deployments/local.toml", 0o660) }), "mode 0660"},
		"folder for all":         {do(func(l layout.Layout) error { return os.Chmod(l.Etc+"/deployments", 0o777) }), "root alone"},
		"sticky folder":          {do(func(l layout.Layout) error { return os.Chmod(l.Etc+"/deployments", 0o777|os.ModeSticky) }), "mode 1777"},
		"file is a link": {do(func(l layout.Layout) error {
			return errors.Join(os.Rename(l.Etc+"/broker.toml", l.Etc+"/b"), os.Symlink("b", l.Etc+"/broker.toml"))
		}), "symbolic link"},
		"folder is a link": {do(func(l layout.Layout) error {
			return errors.Join(os.Rename(l.Etc+"/deployments", l.Etc+"/d"), os.Symlink("d", l.Etc+"/deployments"))
		}), "root alone"},
		"file is a pipe": {do(func(l layout.Layout) error {
			return errors.Join(os.Remove(l.Etc+"/broker.toml"), unix.Mkfifo(l.Etc+"/broker.toml", 0o600))
		}), "wrong file type"},
		"file is a device": {do(func(l layout.Layout) error {
			return errors.Join(os.Remove(l.Etc+"/broker.toml"), unix.Mknod(l.Etc+"/broker.toml", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))))
		}), "wrong file type"},
		"file is a folder": {do(func(l layout.Layout) error { return os.Mkdir(l.Etc+"/deployments/x.toml", 0o700) }), "wrong file type"},
		"folder is a file": {do(func(l layout.Layout) error {
			return errors.Join(os.RemoveAll(l.Etc+"/deployments"), os.WriteFile(l.Etc+"/deployments", nil, 0o600))
		}), "wrong file type"},
		"folder above for all":    {do(func(l layout.Layout) error { return os.Chmod(filepath.Dir(l.Etc), 0o777) }), "root alone"},
		"folder above of another": {do(func(l layout.Layout) error { return os.Chown(filepath.Dir(l.Etc), 1000, 0) }), "root alone"},
		"other file":              {do(func(l layout.Layout) error { return os.WriteFile(l.Etc+"/deployments/local.toml.bak", nil, 0o600) }), "local.toml.bak"},
		"id":                      {do(func(l layout.Layout) error { return os.WriteFile(l.Etc+"/deployments/Loc.toml", nil, 0o600) }), "Loc.toml"},
		"id of ours":              {do(func(l layout.Layout) error { return os.WriteFile(l.Etc+"/deployments/admin.toml", nil, 0o600) }), "admin.toml"},
		"long id": {do(func(l layout.Layout) error {
			return os.WriteFile(l.Etc+"/deployments/"+strings.Repeat("a", 33)+".toml", nil, 0o600)
		}), "ID.toml"},
		"file too long": {func(t *testing.T, l layout.Layout) {
			write(t, l.Etc+"/broker.toml", brokerTOML+strings.Repeat("#\n", maxFile))
		}, "longer"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newEtc(t)
			c.do(t, l)
			_, err := Load(l)
			if code := wire.CodeOf(err); code != wire.CodeInvalidConfig {
				t.Fatalf("got %v, want %s", err, wire.CodeInvalidConfig)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %q, want it to say %q", err, c.says)
			}
			var e *wire.Error
			if errors.As(err, &e) && e.Advice == "" {
				t.Error("there is no advice")
			}
		})
	}
}

func replaced(t *testing.T, s, old, new string) string {
	t.Helper()
	if !strings.Contains(s, old) {
		t.Fatalf("there is no %q to replace", old)
	}
	return strings.Replace(s, old, new, 1)
}

// A socket whose path the kernel would not take is refused beforehand.
func TestLongSocketPath(t *testing.T) {
	l := newEtc(t)
	long := strings.Repeat("a", 32)
	if err := os.Rename(l.Etc+"/deployments/local.toml", l.Etc+"/deployments/"+long+".toml"); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(l); err != nil {
		t.Fatalf("an id of 32 letters below a short prefix: %v", err)
	}
	deep := filepath.Dir(l.Etc) + "/" + strings.Repeat("b", 20)
	if err := os.Rename(l.Etc, deep); err != nil {
		t.Fatal(err)
	}
	l2 := layout.Layout{Etc: deep, Run: deep + "/run", Var: deep + "/var"}
	if _, err := Load(l2); wire.CodeOf(err) != wire.CodeInvalidConfig || !strings.Contains(err.Error(), "bytes too long") {
		t.Errorf("got %v", err)
	}
}

// The README's example is valid as it stands.
func TestReadme(t *testing.T) {
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, part := range strings.Split(string(b), "```toml\n")[1:] {
		block, _, _ := strings.Cut(part, "```")
		blocks = append(blocks, block)
	}
	if len(blocks) != 2 {
		t.Fatalf("there are %d examples", len(blocks))
	}
	l := newEtc(t)
	write(t, l.Etc+"/broker.toml", blocks[0])
	write(t, l.Etc+"/deployments/local.toml", blocks[1])
	c, err := Load(l)
	if err != nil {
		t.Fatal(err)
	}
	// Every value but cpus is the default, as the text says.
	got := *c.Deployments["local"].Profiles["pi"]
	want := Profile{Kind: KindPi}
	if err := want.complete("pi"); err != nil {
		t.Fatal(err)
	}
	want.CPUs = 2
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the example is %+v, the defaults are %+v", got, want)
	}
}
