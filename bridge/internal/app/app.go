package app

import (
	"context"
	"errors"
	"net"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/brokerlink"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/custody"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/serve"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/session"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
)

// Run serves one session until ctx ends. It takes ownership of conn, the
// bridge's end of the socketpair. A session that can't be opened is reported
// to the broker and returned; the end of the broker is not an end.
func Run(ctx context.Context, conn *net.UnixConn, log hclog.Logger) error {
	// Deadlines bound the wait for the configuration; a signal ends it at
	// once.
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	link, configure, fds, err := brokerlink.Receive(conn)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if link != nil {
			link.Close()
		}
		return err
	}
	defer link.Close()
	log = log.With("session", string(configure.Session))
	s, server, err := open(configure, fds, link, log)
	if err != nil {
		tellFailure(link, err, log)
		return err
	}
	s.Start()
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.Run()
	}()
	log.Info("ready", "next", s.NextSequence())
	if err := link.Tell(wire.Ready{NextSequence: s.NextSequence()}); err != nil {
		log.Warn("ready_untold", "error", err.Error())
	}
	<-ctx.Done()
	log.Info("stopping")
	// The link goes first: it releases whoever waits for the broker.
	link.Close()
	server.Close()
	<-served
	s.Close()
	return nil
}

func open(c wire.Configure, fds []int, link *brokerlink.Link, log hclog.Logger) (*session.Session, *serve.Server, error) {
	set, err := custody.Adopt(c.Descriptors, fds)
	if err != nil {
		return nil, nil, err
	}
	s, err := session.Open(session.Config{
		Session: c.Session, Epoch: c.Epoch, Framing: c.Framing,
		MaxRecord: c.MaxRecord, MaxInput: c.MaxInput, SpoolLimit: c.SpoolLimit,
		Overflow: c.Overflow, LeaseMillis: c.LeaseMillis,
		Set: set, Broker: link, Log: log,
	})
	if err != nil {
		return nil, nil, err
	}
	return s, serve.New(s, set.Listener, c.PeerUIDs, log), nil
}

// tellFailure reports why the session can't be opened, with its cause: the
// broker writes it into its log.
func tellFailure(link *brokerlink.Link, err error, log hclog.Logger) {
	e := &wire.Error{Code: wire.CodeInternal, Message: err.Error(), Advice: "look at the bridge's log"}
	var known *wire.Error
	if errors.As(err, &known) {
		e.Code, e.Message, e.Advice = known.Code, known.Message, known.Advice
		if known.Err != nil {
			e.Message += ": " + known.Err.Error()
		}
	}
	if told := link.Tell(e.ToMessage(0)); told != nil {
		log.Warn("failure_untold", "error", told.Error())
	}
}
