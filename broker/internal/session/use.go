package session

import (
	"errors"
	"fmt"
	"io/fs"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Use puts another configuration in place of the one in force. Sessions keep
// what they were made with; only who may connect to their sockets follows, by
// the sockets' owners. Calls come one after the other. Error:
// CodeRestartRequired when sessions that are there forbid the change,
// CodeDiskUnavailable when a home can't be made; then nothing has changed.
func (m *Manager) Use(c *registry.Config) error {
	for _, size := range c.Homes() {
		if err := m.Images.Prepare(m.ctx, size); err != nil {
			return err
		}
	}
	m.mu.Lock()
	all := m.sorted(Operator())
	for _, s := range all {
		if err := s.fits(c); err != nil {
			m.mu.Unlock()
			return err
		}
	}
	m.registry.Store(c)
	m.mu.Unlock()
	for _, s := range all {
		s.welcome(c)
	}
	return nil
}

// fits reports why a session that is there forbids a configuration.
func (s *session) fits(c *registry.Config) error {
	d, bridge, reaper := c.Deployments[s.rec.Deployment], s.rec.BridgeUID, s.rec.ReaperUID
	switch {
	case d != nil && d.Container != s.rec.Container:
		return &wire.Error{
			Code: wire.CodeRestartRequired, Message: fmt.Sprintf("deployments/%s.toml: container: it can't change while the deployment has sessions", d.ID),
			Advice: "delete its sessions first; the configuration before is still in force",
		}
	case bridge != 0 && !(c.Bridge.Holds(bridge) && c.Bridge.Holds(reaper)):
		return &wire.Error{
			Code: wire.CodeRestartRequired, Message: fmt.Sprintf("broker.toml: bridge.first_uid, bridge.uid_count: the range does not hold %d and %d, which a session has", bridge, reaper),
			Advice: "delete the sessions first, or choose a range that holds theirs; the configuration before is still in force",
		}
	}
	return nil
}

// welcome lets the users that the session's deployment has now connect to its
// socket, and nobody if the deployment is gone. The bridge has the users of its
// start: those that are new are refused until there is another one, and the
// connections of those that were removed live until they end.
func (s *session) welcome(c *registry.Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var users []uint32
	if d := c.Deployments[s.rec.Deployment]; d != nil {
		users, s.peers = d.PeerUIDs, d.PeerUIDs
	}
	// One without a socket is being made, or deleted.
	if err := layout.Share(s.paths.Socket, users); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Error("socket_unshared", "error", err.Error(), "advice", "delete the session, or its socket: users who were removed may still connect to it")
	}
}
