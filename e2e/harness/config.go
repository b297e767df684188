package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// BrokerConfigFile and DeploymentFile are where the configuration stands.
func (s *System) BrokerConfigFile() string { return filepath.Join(s.Prefix, "etc", "broker.toml") }

// DeploymentFile is the registry of the one deployment.
func (s *System) DeploymentFile() string {
	return filepath.Join(s.Prefix, "etc", "deployments", Deployment+".toml")
}

func (s *System) writeConfig() error {
	if err := os.MkdirAll(filepath.Dir(s.DeploymentFile()), 0o700); err != nil {
		return err
	}
	config := s.brokerConfig()
	if s.options.BrokerConfig != nil {
		config = s.options.BrokerConfig(config)
	}
	if err := os.WriteFile(s.BrokerConfigFile(), []byte(config), 0o600); err != nil {
		return err
	}
	return os.WriteFile(s.DeploymentFile(), []byte(s.deploymentConfig()), 0o600)
}

func (s *System) brokerConfig() string {
	return fmt.Sprintf(`[runsc]
path = %q
manifest = %q
digest = %q

[rootfs]
path = %q
manifest = %q
digest = %q

[bridge]
path = %q
first_uid = 2000000
uid_count = 1000
`, s.artifacts.Runsc.Path, s.artifacts.Runsc.Manifest, s.artifacts.Runsc.Digest,
		s.options.Rootfs.Path, s.options.Rootfs.Manifest, s.options.Rootfs.Digest,
		s.Program("paseo-sandbox-bridge"))
}

func (s *System) deploymentConfig() string {
	var b strings.Builder
	b.WriteString("peer_uids = [")
	for i, uid := range s.options.PeerUIDs {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, uid)
	}
	b.WriteString("]\ndefault_profile = \"pi\"\n")
	if s.options.MaxSessions > 0 {
		fmt.Fprintf(&b, "max_sessions = %d\n", s.options.MaxSessions)
	}
	b.WriteString("\n[profiles.pi]\nkind = \"pi\"\n")
	for _, w := range s.options.Workspaces {
		fmt.Fprintf(&b, "\n[workspaces.%s]\nroot = %q\nread_only = %t\nsubfolders = %t\nuid = %d\ngid = %d\n", w.Name, s.WorkspaceDir(w.Name), w.ReadOnly, w.Subfolders, w.UID, w.GID)
		if w.ClientPath != "" {
			fmt.Fprintf(&b, "client_path = %q\n", w.ClientPath)
		}
	}
	b.WriteString("\n" + s.options.Profiles)
	return b.String()
}
