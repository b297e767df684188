package registry

import (
	"fmt"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Resolve finds the workspace that a valid request names, by its handle or by
// a path as the client sees it, and the folder below its root; empty means the
// root. Nothing is opened.
//
// A path and a folder that come together are one path. It belongs to the
// workspace with the longest client_path that it equals or lies below, as with
// mounts in a container: where one client_path lies below another, the inner
// one hides what the outer has there.
//
// What another deployment has, or a workspace that a reload has removed, is as
// what never was. Errors: CodeUnknownWorkspace, CodePathUnregistered,
// CodeSubfoldersForbidden, CodePathTooLong.
func (d *Deployment) Resolve(r wire.Create) (workspace, folder string, err error) {
	workspace, folder = r.Workspace, r.Folder
	if r.Path != "" {
		path := r.Path
		if folder != "" {
			path += "/" + folder
		}
		if workspace, folder = d.at(path); workspace == "" {
			return "", "", &wire.Error{Code: wire.CodePathUnregistered, Message: fmt.Sprintf("no workspace is registered for the path %.80q", path), Advice: "describe the deployment to see its client paths, or have the operator register one"}
		}
	}
	w := d.Workspaces[workspace]
	switch {
	case w == nil:
		return "", "", &wire.Error{Code: wire.CodeUnknownWorkspace, Message: fmt.Sprintf("there is no workspace %.70q", workspace), Advice: "describe the deployment to see its workspaces, or have the operator register it"}
	case folder != "" && !w.Subfolders:
		return "", "", &wire.Error{Code: wire.CodeSubfoldersForbidden, Message: fmt.Sprintf("the workspace %q can only be used as a whole, without a folder", workspace), Advice: "leave the folder out, or have the operator set subfolders = true for the workspace"}
	case len(folder) >= wire.MaxPath:
		return "", "", &wire.Error{Code: wire.CodePathTooLong, Message: fmt.Sprintf("the folder has %d bytes, the limit is %d", len(folder), wire.MaxPath), Advice: "register a workspace nearer to the folder"}
	}
	return workspace, folder, nil
}

// at returns the workspace of a client's path, and the rest of the path.
func (d *Deployment) at(path string) (workspace, rest string) {
	longest := 0
	for name, w := range d.Workspaces {
		if n := len(w.ClientPath); n > longest && within(w.ClientPath, path) {
			workspace, rest, longest = name, strings.TrimPrefix(path[n:], "/"), n
		}
	}
	return workspace, rest
}

// within reports whether the path is the folder or lies below it.
func within(folder, path string) bool {
	rest, ok := strings.CutPrefix(path, folder)
	return ok && (rest == "" || rest[0] == '/')
}
