package inforce

import (
	"errors"
	"net"
	"strings"
	"sync"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/activation"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/layout"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/server"
	"git.jb.codes/jb/paseo-sandbox/broker/internal/session"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
)

// Options are what a Configuration works with. The Manager stays the caller's.
type Options struct {
	Layout  layout.Layout
	Manager *session.Manager
	Limits  server.Limits
	Log     hclog.Logger
	// Listen makes the sockets; without it they are those that systemd Passed.
	Listen bool
	Passed *activation.Passed
}

// Configuration is the one in force. It is safe for concurrent use.
type Configuration struct {
	Options
	server *server.Server

	mu      sync.Mutex // held by the one reload at a time
	config  *registry.Config
	sockets map[string]opened // by path
}

// opened is a socket that is served.
type opened struct {
	activation.Socket
	endpoint *server.Endpoint
}

// Open puts the first configuration, which the manager has already, in force:
// it opens its sockets and serves them until Close. After an error nothing is
// open.
func Open(o Options, config *registry.Config) (*Configuration, error) {
	c := &Configuration{Options: o, config: config, sockets: make(map[string]opened)}
	c.server = server.New(server.Config{Manager: o.Manager, Registry: config, Reload: c.Reload, Limits: o.Limits, Log: o.Log})
	needed := c.needed(config)
	listeners, err := c.open(needed)
	if err != nil {
		return nil, err
	}
	for _, s := range needed {
		c.serve(s, listeners[s.Name])
	}
	return c, nil
}

// open opens all sockets, or none. Those of systemd get the owners that the
// registry says, whatever their units say.
func (c *Configuration) open(needed []activation.Socket) (listeners map[string]*net.UnixListener, err error) {
	if !c.Listen {
		if listeners, err = c.Passed.Listeners(needed); err != nil {
			return nil, err
		}
		for _, s := range needed {
			err = errors.Join(err, s.Share())
		}
	} else {
		listeners = make(map[string]*net.UnixListener)
		for _, s := range needed {
			var l *net.UnixListener
			if l, err = activation.Listen(s); err != nil {
				break
			}
			listeners[s.Name] = l
		}
	}
	if err != nil {
		c.abandon(needed, listeners)
		return nil, err
	}
	return listeners, nil
}

// abandon closes listeners that were not served.
func (c *Configuration) abandon(sockets []activation.Socket, listeners map[string]*net.UnixListener) {
	for _, s := range sockets {
		if l := listeners[s.Name]; l != nil {
			l.Close()
			c.remove(s)
		}
	}
}

// remove removes the file of a socket that nobody listens on any more, unless
// it is systemd's.
func (c *Configuration) remove(s activation.Socket) {
	if !c.Listen {
		return
	}
	if err := s.Remove(); err != nil {
		c.Log.Error("socket_left", "path", s.Path, "error", err.Error())
	}
}

func (c *Configuration) serve(s activation.Socket, l *net.UnixListener) {
	scope := session.Of(s.Name)
	if s.Name == activation.Admin {
		scope = session.Operator()
	}
	c.sockets[s.Path] = opened{s, c.server.Serve(l, scope)}
}

// needed lists the sockets that a configuration asks for.
func (c *Configuration) needed(config *registry.Config) []activation.Socket {
	all := []activation.Socket{{Name: activation.Admin, Path: c.Layout.AdminSocket(), UIDs: []uint32{0}}}
	for _, id := range config.IDs() {
		d := config.Deployments[id]
		all = append(all, activation.Socket{Name: id, Path: c.Layout.BrokerSocket(id, d.Container), UIDs: d.PeerUIDs})
	}
	return all
}

// OnSignal is Reload for a request that no connection made. It is in the audit
// all the same.
func (c *Configuration) OnSignal() { c.server.ReloadOnSignal() }

// Close ends all connections and removes the sockets.
func (c *Configuration) Close() {
	c.server.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.sockets {
		c.remove(s.Socket)
	}
}

// Reload reads the configuration again and puts it in force. After an error
// everything is as it was. Errors: CodeInvalidConfig with file and line;
// CodeRestartRequired, which names the key, for what can't change while the
// broker, or a session, runs.
func (c *Configuration) Reload() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next, err := registry.Load(c.Layout)
	if err != nil {
		return err
	}
	if err := fixed(c.config, next); err != nil {
		return err
	}
	if err := c.use(next); err != nil {
		return err
	}
	c.config = next
	c.Log.Info("reloaded", "deployments", strings.Join(next.IDs(), ","))
	return nil
}

// fixed refuses changes of what the broker has opened or checked once.
func fixed(old, next *registry.Config) error {
	for _, k := range []struct {
		key  string
		same bool
	}{
		{"runsc", old.Runsc == next.Runsc},
		{"rootfs", old.Rootfs == next.Rootfs},
		{"bridge.path", old.Bridge.Path == next.Bridge.Path},
		{"audit", old.Audit == next.Audit},
	} {
		if !k.same {
			return &wire.Error{
				Code: wire.CodeRestartRequired, Message: "broker.toml: " + k.key + ": it can't change while the broker runs",
				Advice: "restart the broker, sessions go on; until then the configuration before is in force",
			}
		}
	}
	return nil
}
