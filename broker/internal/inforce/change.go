package inforce

import (
	"net"
	"slices"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/activation"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// use replaces one configuration by another. What can fail comes first, and is
// undone if something after it does.
func (c *Configuration) use(next *registry.Config) error {
	needed := c.needed(next)
	var added, shared []activation.Socket
	for _, s := range needed {
		before, ok := c.sockets[s.Path]
		switch {
		case !ok:
			added = append(added, s)
		case !slices.Equal(before.UIDs, s.UIDs):
			shared = append(shared, s)
		}
	}
	if len(added) > 0 && !c.Listen {
		return &wire.Error{
			Code: wire.CodeRestartRequired, Message: "deployments/" + added[0].Name + ".toml: systemd did not pass its socket to this broker",
			Advice: "enable its socket unit and restart the broker, sessions go on; until then the configuration before is in force",
		}
	}
	if err := c.Layout.Prepare(next.Containers()); err != nil {
		return err
	}
	var listeners map[string]*net.UnixListener
	if len(added) > 0 {
		var err error
		if listeners, err = c.open(added); err != nil {
			return err
		}
	}
	if err := c.share(shared); err != nil {
		c.abandon(added, listeners)
		return err
	}
	if err := c.Manager.Use(next); err != nil {
		c.unshare(shared)
		c.abandon(added, listeners)
		return err
	}
	c.server.Use(next)
	for _, s := range added {
		c.serve(s, listeners[s.Name])
	}
	for _, s := range shared {
		c.sockets[s.Path] = opened{s, c.sockets[s.Path].endpoint}
	}
	c.drop(needed)
	return nil
}

// share gives sockets to other users, all or none.
func (c *Configuration) share(sockets []activation.Socket) error {
	for i, s := range sockets {
		if err := s.Share(); err != nil {
			c.unshare(sockets[:i+1])
			return err
		}
	}
	return nil
}

// unshare gives sockets back to the users that they had.
func (c *Configuration) unshare(sockets []activation.Socket) {
	for _, s := range sockets {
		if err := c.sockets[s.Path].Share(); err != nil {
			c.Log.Error("socket_unshared", "path", s.Path, "error", err.Error())
		}
	}
}

// drop closes the sockets that are not needed. One of systemd's stays, for
// systemd would hold it open with nobody behind it: whoever connects is
// refused, and its deployment may come back.
func (c *Configuration) drop(needed []activation.Socket) {
	for path, s := range c.sockets {
		if !c.Listen || slices.ContainsFunc(needed, func(n activation.Socket) bool { return n.Path == path }) {
			continue
		}
		s.endpoint.Close()
		c.remove(s.Socket)
		delete(c.sockets, path)
	}
}
