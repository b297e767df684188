package session

import (
	"os"
	"path/filepath"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// writeAttachments makes the folder that the agent sees as /attachments and
// returns its path; without attachments it makes none and returns "". Each is a
// file of root's that everybody may read, in a folder below the bundle, which
// root alone can enter. Names differ and have no slash; counts and sizes have
// limits (wire.Create.Validate). They go with the bundle.
func (s *session) writeAttachments(all []wire.Attachment) (string, error) {
	if len(all) == 0 {
		return "", nil
	}
	dir := s.paths.Attachments
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	for _, a := range all {
		file := filepath.Join(dir, a.Name)
		if err := os.WriteFile(file, a.Data, 0o400); err != nil {
			return "", err
		}
		// The umask keeps others out of what the broker makes.
		if err := os.Chmod(file, 0o444); err != nil {
			return "", err
		}
	}
	return dir, os.Chmod(dir, 0o755)
}
