package session

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/bundle"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/trusted"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// maxCredential bounds one credential, in bytes.
const maxCredential = 1 << 20

// agentDir is Pi's folder of settings, relative to its home.
const agentDir = ".pi/agent"

// copyCredentials copies the deployment's credentials into the bundle, where
// root and the agent's group can read them and only root gets to, and makes
// the places in the home that they are mounted on: the folder around them is
// the agent's, because Pi makes locks there. A copy, because the file may be
// replaced while the session runs (R62).
func (s *session) copyCredentials(c *creation) ([]bundle.File, error) {
	if len(c.credentials) == 0 {
		return nil, nil
	}
	uid, gid := int(c.workspace.UID), int(c.workspace.GID)
	dir := filepath.Join(s.paths.Bundle, "credentials")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	// What is in a home may be an agent's, so nothing is followed out of it.
	home, err := os.OpenRoot(s.home(c.profile))
	if err != nil {
		return nil, err
	}
	defer home.Close()
	for _, d := range []string{filepath.Dir(agentDir), agentDir} {
		if err := home.Mkdir(d, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if err := home.Lchown(d, uid, gid); err != nil {
			return nil, err
		}
	}
	var files []bundle.File
	for _, name := range slices.Sorted(maps.Keys(c.credentials)) {
		as := c.credentials[name].As
		source := filepath.Join(dir, as)
		if err := copyCredential(c.credentials[name], source, gid); err != nil {
			return nil, &wire.Error{Code: wire.CodeCredentialUnusable, Message: fmt.Sprintf("the credential %q can't be used", name), Advice: "have the operator look at the broker's log and correct the credential's file", Err: err}
		}
		if err := makeTarget(home, agentDir+"/"+as, uid, gid); err != nil {
			return nil, err
		}
		files = append(files, bundle.File{Source: source, Destination: bundle.HomeDir + "/" + agentDir + "/" + as})
	}
	return files, nil
}

// copyCredential errors name the file, and nothing that is in it.
func copyCredential(c *registry.Credential, to string, gid int) error {
	dir, err := trusted.OpenDir(filepath.Dir(c.File))
	if err != nil {
		return err
	}
	defer dir.Close()
	b, err := trusted.ReadFile(dir, filepath.Base(c.File), maxCredential)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Chown(0, gid), f.Chmod(0o440), f.Close())
}

// makeTarget makes the empty file that is mounted on: runsc would make it as
// root.
func makeTarget(home *os.Root, name string, uid, gid int) error {
	f, err := home.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Chown(uid, gid), f.Close())
}
