package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"time"

	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// dialTimeout bounds connecting and the hello when the caller's context has no
// deadline. A broker that systemd starts for this very connection needs some
// of it.
const dialTimeout = 15 * time.Second

// readBuffer holds a batch of small frames.
const readBuffer = 64 << 10

// target says what is dialled and how a failure to is told.
type target struct {
	protocol wire.Protocol
	peer     string
	maxFrame int
	code     wire.Code
	missing  string
	refused  string
}

var (
	brokerTarget = target{
		protocol: wire.ProtocolBroker,
		peer:     "broker",
		maxFrame: wire.MaxBrokerFrame,
		code:     wire.CodeBrokerUnreachable,
		missing:  "start the broker (systemctl start paseo-sandbox-broker.socket), or check the path; in a container, check that the folder of the socket is mounted",
		refused:  "the socket is left over from a broker that is gone: start it (systemctl restart paseo-sandbox-broker.socket)",
	}
	sessionTarget = target{
		protocol: wire.ProtocolBridge,
		peer:     "bridge",
		maxFrame: wire.MaxBridgeFrame,
		code:     CodeSessionUnreachable,
		missing:  "ask the broker for the session: it may have been deleted",
		refused:  "ask the broker for the session's state: its bridge is gone",
	}
)

// dial connects to a Unix socket and exchanges the hellos.
func dial(ctx context.Context, t target, path string) (*link, error) {
	ctx, cancel := bound(ctx, dialTimeout)
	defer cancel()
	conn, err := t.connect(ctx, path)
	if err != nil {
		return nil, err
	}
	l := newLink(conn, t)
	stop := l.interrupt(ctx, conn.SetDeadline)
	err = l.hello()
	stop()
	if err == nil {
		return l, nil
	}
	conn.Close()
	if ctx.Err() != nil {
		return nil, expired(ctx, fmt.Sprintf("greeting the %s at %s", t.peer, path))
	}
	return nil, err
}

// connect waits while the listener's backlog is full, which a Unix socket
// reports as EAGAIN (connect(2)): a session whose bridge is being replaced
// accepts nobody for a moment.
func (t target) connect(ctx context.Context, path string) (*net.UnixConn, error) {
	if path == "" || len(path) > wire.MaxSocketPath {
		return nil, &wire.Error{
			Code:    wire.CodeInvalidArgument,
			Message: fmt.Sprintf("%q can't be the path of a socket: it is %d bytes long, 1 to %d are possible", path, len(path), wire.MaxSocketPath),
			Advice:  "name the socket of a broker or of a session that runs",
		}
	}
	const retry = 10 * time.Millisecond
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err == nil {
			return conn.(*net.UnixConn), nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return nil, t.unreachable(ctx, path, err)
		}
		select {
		case <-ctx.Done():
			return nil, t.unreachable(ctx, path, err)
		case <-time.After(retry):
		}
	}
}

func (t target) unreachable(ctx context.Context, path string, cause error) error {
	e := &wire.Error{Code: t.code, Err: cause}
	switch {
	case errors.Is(cause, fs.ErrNotExist):
		e.Message = fmt.Sprintf("there is no %s socket at %s", t.peer, path)
		e.Advice = t.missing
	case errors.Is(cause, unix.ECONNREFUSED):
		e.Message = fmt.Sprintf("nobody listens on the %s socket %s", t.peer, path)
		e.Advice = t.refused
	case errors.Is(cause, fs.ErrPermission):
		e.Message = fmt.Sprintf("this user may not use the %s socket %s", t.peer, path)
		e.Advice = "ask the administrator to register this user for the deployment (broker-admin deployment show)"
	case errors.Is(cause, unix.EAGAIN):
		e.Message = fmt.Sprintf("too many connections wait on the %s socket %s", t.peer, path)
		e.Advice = "try again; if it stays so, the process behind it hangs (broker-admin doctor)"
	case ctx.Err() != nil:
		return expired(ctx, fmt.Sprintf("connecting to the %s at %s", t.peer, path))
	default:
		e.Message = fmt.Sprintf("the %s socket %s can't be reached", t.peer, path)
		e.Advice = "check the path (broker-admin doctor)"
	}
	return e
}

// hello exchanges the first messages. The caller bounds it by a deadline on
// the connection.
func (l *link) hello() error {
	mine := wire.Hello{Protocol: l.target.protocol, Versions: []uint64{wire.Version}, MaxFrame: uint64(l.target.maxFrame)}
	// A peer that refuses us before it reads has said why: look at that first.
	writeErr := wire.WriteMessage(l.conn, mine, wire.MinPeerFrame)
	payload, err := wire.ReadFrame(l.in, l.target.maxFrame, nil)
	if err != nil {
		return lost(l.target.peer, errors.Join(err, writeErr))
	}
	m, err := wire.Decode(l.target.replies(), payload)
	if err != nil {
		return lost(l.target.peer, err)
	}
	switch m := m.(type) {
	case wire.ErrorMessage:
		return m.Err()
	case wire.Hello:
		if m.Protocol != l.target.protocol || len(m.Versions) != 1 || m.Versions[0] != wire.Version {
			return &wire.Error{
				Code:    wire.CodeUnsupportedVersion,
				Message: fmt.Sprintf("the peer speaks %s, version %d", m.Protocol, m.Versions),
				Advice:  "use a client and a broker of the same release",
			}
		}
		l.limit = int(min(uint64(l.target.maxFrame), m.MaxFrame))
		return nil
	}
	return violation(l.target.peer, "it greets with %s", m.Kind())
}

func (t target) replies() wire.Set {
	if t.protocol == wire.ProtocolBroker {
		return wire.BrokerReplies
	}
	return wire.BridgeReplies
}

func newLink(conn *net.UnixConn, t target) *link {
	return &link{
		conn:     conn,
		in:       bufio.NewReaderSize(conn, readBuffer),
		target:   t,
		writing:  make(chan struct{}, 1),
		calls:    make(map[uint64]chan wire.Message),
		done:     make(chan struct{}),
		finished: make(chan struct{}),
	}
}

// besideSocket joins a path that is relative to the folder of a socket.
func besideSocket(socket, relative string) string {
	if relative == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(socket), filepath.FromSlash(relative))
}
