package clienttest

import (
	"bufio"
	"io"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Agent is the program of a session. It returns when it ends; a signal is its
// own business, but KILL makes its reads and writes fail.
type Agent func(p *Process) wire.Exit

// Process is what an agent has.
type Process struct {
	session *session
	Session wire.SessionID
	// Create is the request that made the session.
	Create wire.Create
	// Stdin ends with io.EOF when the input is closed and all of it was read.
	Stdin io.Reader
	// What is written to Stdout and Stderr becomes a record at each line feed,
	// and at the end of the process.
	Stdout, Stderr io.Writer
	// Signals has the signals that were sent, by name, KILL included.
	Signals <-chan string
}

// Exited is the end of a process that exits by itself.
func Exited(code int) wire.Exit { return wire.Exit{Code: int64(code), Reason: wire.ReasonExited} }

// Killed is the end of a process by a signal: 15 is TERM, 9 is KILL.
func Killed(name string, number int) wire.Exit {
	return wire.Exit{Code: 128 + int64(number), Signal: name, Reason: wire.ReasonTerminated}
}

// Echo is an agent that writes each line of its input to its output, and ends
// at the end of its input, or at TERM.
func Echo(p *Process) wire.Exit {
	lines := make(chan []byte)
	quit := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(lines)
		r := bufio.NewReader(p.Stdin)
		for {
			line, err := r.ReadBytes('\n')
			if len(line) > 0 {
				select {
				case lines <- line:
				case <-quit:
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	defer func() {
		close(quit)
		p.session.change(func() { p.session.deaf = true })
		<-done
	}()
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return Exited(0)
			}
			p.Stdout.Write(line)
		case name := <-p.Signals:
			if name == "TERM" {
				return Killed("TERM", 15)
			}
		}
	}
}
