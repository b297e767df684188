package registry

import (
	"errors"
	"path"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

func paths() *Deployment {
	return &Deployment{ID: "one", Workspaces: map[string]*Workspace{
		"all":    {ClientPath: "/workspace", Subfolders: true},
		"site":   {ClientPath: "/workspace/site", Subfolders: true},
		"closed": {ClientPath: "/closed"},
		"named":  {Subfolders: true},
	}}
}

// R12 R14: a request is led to one workspace and one folder, or refused with
// the code of the reason.
func TestResolve(t *testing.T) {
	d := paths()
	long := strings.Repeat("a/", wire.MaxPath/2-1) + "a"
	for name, c := range map[string]struct {
		request           wire.Create
		workspace, folder string
		code              wire.Code
	}{
		"handle":                  {wire.Create{Workspace: "named"}, "named", "", ""},
		"handle and folder":       {wire.Create{Workspace: "named", Folder: "a/b"}, "named", "a/b", ""},
		"handle of a closed one":  {wire.Create{Workspace: "closed"}, "closed", "", ""},
		"path":                    {wire.Create{Path: "/workspace"}, "all", "", ""},
		"path below":              {wire.Create{Path: "/workspace/a/b"}, "all", "a/b", ""},
		"path and folder":         {wire.Create{Path: "/workspace/a", Folder: "b"}, "all", "a/b", ""},
		"inner path":              {wire.Create{Path: "/workspace/site"}, "site", "", ""},
		"below the inner path":    {wire.Create{Path: "/workspace/site/x"}, "site", "x", ""},
		"inner path by a folder":  {wire.Create{Path: "/workspace", Folder: "site/x"}, "site", "x", ""},
		"like the inner path":     {wire.Create{Path: "/workspace/site2"}, "all", "site2", ""},
		"folder of a closed one":  {wire.Create{Workspace: "closed", Folder: "a"}, "", "", wire.CodeSubfoldersForbidden},
		"path below a closed one": {wire.Create{Path: "/closed/a"}, "", "", wire.CodeSubfoldersForbidden},
		"no such handle":          {wire.Create{Workspace: "other"}, "", "", wire.CodeUnknownWorkspace},
		"handle of an id":         {wire.Create{Workspace: "one"}, "", "", wire.CodeUnknownWorkspace},
		"no such path":            {wire.Create{Path: "/srv"}, "", "", wire.CodePathUnregistered},
		"above all":               {wire.Create{Path: "/work"}, "", "", wire.CodePathUnregistered},
		"like a path":             {wire.Create{Path: "/workspaces"}, "", "", wire.CodePathUnregistered},
		"too long together":       {wire.Create{Path: "/workspace/a", Folder: long}, "", "", wire.CodePathTooLong},
		"stale handle":            {wire.Create{Workspace: "removed"}, "", "", wire.CodeUnknownWorkspace},
	} {
		t.Run(name, func(t *testing.T) {
			workspace, folder, err := d.Resolve(c.request)
			if workspace != c.workspace || folder != c.folder || wire.CodeOf(err) != c.code {
				t.Errorf("got %q, %q, %v", workspace, folder, err)
			}
			var e *wire.Error
			if errors.As(err, &e) && e.Advice == "" {
				t.Error("there is no advice")
			}
		})
	}
}

// R12: what another deployment has, what a reload removed and what never was
// are refused in the same words.
func TestUnknownIsUnknown(t *testing.T) {
	removed := paths()
	delete(removed.Workspaces, "all")
	never := &Deployment{ID: "two", Workspaces: map[string]*Workspace{"x": {ClientPath: "/x"}}}
	for _, r := range []wire.Create{{Workspace: "all"}, {Path: "/workspace"}, {Path: "/workspace/a"}, {Workspace: "all", Folder: "a"}} {
		_, _, a := removed.Resolve(r)
		_, _, b := never.Resolve(r)
		if a == nil || b == nil || a.Error() != b.Error() {
			t.Errorf("%+v: %v and %v", r, a, b)
		}
	}
}

// FuzzResolve: what the protocol lets through is led below the root of a
// workspace, and to one that a model finds too.
func FuzzResolve(f *testing.F) {
	for _, s := range [][2]string{
		{"/workspace", ""}, {"/workspace/site", "x"}, {"/workspace/../etc", "../x"}, {"/workspace/a", "/etc"}, {"/workspace//site", "."},
		{"/closed/\x00", "a"}, {"/workspace/\xff", ""}, {"", "..."}, {"/work", "space"}, {"/", "workspace"},
	} {
		f.Add(s[0], s[1])
	}
	d := paths()
	f.Fuzz(func(t *testing.T, at, folder string) {
		for _, r := range []wire.Create{{ID: 1, Path: at, Folder: folder}, {ID: 1, Workspace: "named", Folder: folder}} {
			if r.Validate() != nil {
				continue
			}
			workspace, below, err := d.Resolve(r)
			if err != nil {
				continue
			}
			if joined := path.Clean("/root/" + below); joined != strings.TrimSuffix("/root/"+below, "/") || !within("/root", joined) {
				t.Fatalf("%q leads to %q", below, joined)
			}
			if w := d.Workspaces[workspace]; r.Path != "" {
				if whole := path.Join(w.ClientPath, below); whole != path.Join(at, folder) {
					t.Fatalf("%q and %q became %q", at, folder, whole)
				}
				if workspace == "all" && within("/workspace/site", path.Join(at, folder)) {
					t.Fatalf("%q and %q: not the longest", at, folder)
				}
			}
			if i := (wire.SessionInfo{Session: wire.SessionID(strings.Repeat("0", 32)), Deployment: "one", Workspace: workspace, Folder: below, Profile: "p", State: wire.StateRunning}); i.Validate() != nil {
				t.Fatalf("the session can't be described: %v", i.Validate())
			}
		}
	})
}

// R14: programs may lie in a workspace that is read-only; nothing else of ours.
func TestReadOnlyMayHoldPrograms(t *testing.T) {
	l := newEtc(t)
	write(t, l.Etc+"/broker.toml", replaced(t, brokerTOML, "[bridge]", "[bridge]\npath = \"/srv/project/bin/bridge\""))
	write(t, l.Etc+"/deployments/local.toml", replaced(t, deploymentTOML, "gid = 1000", "gid = 1000\nread_only = true"))
	if _, err := Load(l); err != nil {
		t.Error(err)
	}
	write(t, l.Etc+"/broker.toml", replaced(t, brokerTOML, `"/opt/runsc"`, `"/srv/project/bin/runsc"`))
	if _, err := Load(l); wire.CodeOf(err) != wire.CodeInvalidConfig {
		t.Errorf("runsc in a read-only workspace: %v", err)
	}
}
