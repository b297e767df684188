package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"git.jb.codes/jb/paseo-sandbox/shared/fdpass"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

// targets are what the attacker could only guess.
type targets struct {
	// Files and Sockets are paths by what they are; Abstract is a socket's
	// abstract name. Program is a file that may be executed and can't be.
	Files, Sockets    map[string]string
	Abstract, Program string
	// Processes are pids by what they are.
	Processes map[string]int
	// Session is another one.
	Session wire.SessionID
}

func main() {
	var err error
	if len(os.Args) == 2 && os.Args[1] == "control" {
		var t targets
		if err = json.NewDecoder(os.Stdin).Decode(&t); err == nil {
			tryAll(t)
		}
	} else {
		err = bridge()
	}
	if err != nil {
		say("failed: %v", err)
		os.Exit(1)
	}
}

// say writes one line, which the broker relays into its log.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "attack "+format+"\n", args...) }

// tryAll makes every attempt of the table.
func tryAll(t targets) {
	for _, a := range attempts(t) {
		result := "done"
		if err := a.try(); err != nil {
			result = err.Error()
			var errno unix.Errno
			if errors.As(err, &errno) {
				result = unix.ErrnoName(errno)
			}
		}
		say("%s = %s", a.name, result)
	}
	say("end of the attempts")
}

// link is the socket that the attacker shares with the broker.
type link struct {
	conn *net.UnixConn
	fds  map[wire.DescriptorName]int
	id   uint64
}

func bridge() error {
	conn, err := fdpass.Adopt(3)
	if err != nil {
		return err
	}
	payload, fds, err := fdpass.Receive(conn, wire.MaxCustodyMessage)
	if err != nil {
		return err
	}
	m, err := wire.Decode(wire.ToBridge, payload)
	if err != nil {
		return err
	}
	l := &link{conn: conn, fds: make(map[wire.DescriptorName]int)}
	for i, name := range m.(wire.Configure).Descriptors {
		l.fds[name] = fds[i]
	}
	if err := l.send(wire.Ready{NextSequence: 1}); err != nil {
		return err
	}
	go l.stayAlive()
	t := l.awaitTargets()
	tryAll(t)
	l.abuse(t)
	for {
		time.Sleep(time.Hour) // until it is killed
	}
}

// stayAlive says what a bridge says that is not stopped.
func (l *link) stayAlive() {
	for l.send(wire.BridgeAlive{}) == nil {
		time.Sleep(wire.BridgeAlivePeriod)
	}
}

// awaitTargets polls a file of the session, of which it gets no notice, until
// the test has written the targets there. The next attacker finds none.
func (l *link) awaitTargets() targets {
	fd := l.fds[wire.FDIndex]
	for b := make([]byte, 1<<16); ; time.Sleep(20 * time.Millisecond) {
		n, err := unix.Pread(fd, b, 0)
		var t targets
		if err == nil && n > 0 && json.Unmarshal(b[:n], &t) == nil {
			if err := unix.Ftruncate(fd, 0); err != nil {
				say("failed: %v", err)
			}
			return t
		}
	}
}

// abuse asks the broker for what is not the attacker's to have. The last one
// ends it.
func (l *link) abuse(t targets) {
	l.id++
	say("claim the exit of a session that runs = %s", l.ask(wire.BridgeExit{ID: l.id, Status: []byte("{}"), Exit: wire.Exit{Code: 99, Reason: wire.ReasonExited}}))
	for range 64 {
		p, err := wire.Encode((&wire.Error{Code: wire.CodeInternal, Message: "descriptors", Advice: "none"}).ToMessage(0))
		if err == nil {
			err = fdpass.Send(l.conn, p, l.fds[wire.FDIndex], l.fds[wire.FDControlLog])
		}
		if errors.Is(err, unix.EPERM) {
			break // a kernel that knows SO_PASSRIGHTS refuses them
		}
		if err != nil {
			say("failed: %v", err)
			return
		}
	}
	say("sent descriptors")
	say("came back = %s", l.ask(wire.SignalSession{ID: 1, Session: t.Session, Signal: "KILL"}))
}

func (l *link) send(m wire.Message) error {
	p, err := wire.Encode(m)
	if err != nil {
		return err
	}
	return fdpass.Send(l.conn, p)
}

// ask returns the code of the answer, or what happened instead.
func (l *link) ask(m wire.Message) string {
	if err := l.send(m); err != nil {
		return err.Error()
	}
	p, fds, err := fdpass.Receive(l.conn, wire.MaxCustodyMessage)
	if err != nil {
		return err.Error()
	}
	answer, err := wire.Decode(wire.ToBridge, p)
	if err != nil {
		return err.Error()
	}
	if len(fds) > 0 {
		return fmt.Sprintf("%d descriptors", len(fds))
	}
	if e, ok := answer.(wire.ErrorMessage); ok {
		return string(e.Code)
	}
	return answer.Kind()
}
