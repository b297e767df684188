package brokerlink

import (
	"errors"
	"net"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/shared/peercred"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
)

// resumeTimeout bounds what a later broker may take to say who it is.
const resumeTimeout = 5 * time.Second

// acceptPause is how long a listener rests that could not accept.
const acceptPause = 100 * time.Millisecond

// Returner gives what a later broker gets.
type Returner interface {
	// Return gives duplicates of the session's descriptors, which are the
	// caller's, the exit, if it is recorded, and whether there is a writer.
	Return() (wire.Resumed, custody.Duplicates, error)
	// Returned is called when the link has the new broker.
	Returned()
}

// Serve lets later brokers resume this session at the listener, until Close. It
// returns at once and takes ownership of the listener. Its folder is root's
// alone, and a peer that is not root is turned away. The last broker to come
// has the link: the one before it is dead, because brokers have a lock.
func (l *Link) Serve(listener *net.UnixListener, c wire.Configure, r Returner, log hclog.Logger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		listener.Close()
		return
	}
	l.listener = listener
	l.readers.Add(1)
	go func() {
		defer l.readers.Done()
		for {
			conn, err := listener.AcceptUnix()
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil:
				// Descriptors may be short for a moment.
				log.Error("resume_not_accepted", "error", err.Error())
				time.Sleep(acceptPause)
			default:
				l.resume(conn, c, r, log)
			}
		}
	}()
}

// resume answers one broker and makes its connection the link's.
func (l *Link) resume(conn *net.UnixConn, c wire.Configure, r Returner, log hclog.Logger) {
	if err := answer(conn, c, r); err != nil {
		conn.Close()
		log.Warn("resume_refused", "error", err.Error())
		return
	}
	if l.use(conn) {
		log.Info("resumed")
		r.Returned()
	}
}

func answer(conn *net.UnixConn, c wire.Configure, r Returner) error {
	peer, err := peercred.Of(conn)
	if err != nil {
		return err
	}
	if !peer.Is(0) {
		return &wire.Error{Code: wire.CodePermissionDenied, Message: "only the broker resumes a session"}
	}
	if err := conn.SetDeadline(time.Now().Add(resumeTimeout)); err != nil {
		return err
	}
	payload, fds, err := fdpass.Receive(conn, wire.MaxCustodyMessage)
	if err != nil {
		return err
	}
	fdpass.CloseAll(fds)
	m, err := wire.Decode(wire.ToBridge, payload)
	if err != nil {
		return err
	}
	if m != (wire.Resume{Type: m.Kind(), Session: c.Session, Epoch: c.Epoch}) {
		return &wire.Error{Code: wire.CodeInvalidMessage, Message: "the first packet does not resume this session"}
	}
	resumed, duplicates, err := r.Return()
	if err != nil {
		return err
	}
	defer duplicates.Close()
	if payload, err = wire.Encode(resumed); err != nil {
		return err
	}
	if err := fdpass.Send(conn, payload, duplicates.FDs...); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}
