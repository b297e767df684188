// Package client lets a Go program use sandboxed agent sessions.
//
// # Two connections
//
// A Broker is a connection to a deployment's broker socket: it creates
// sessions, lists, inspects, terminates and deletes them. A Session is a
// connection to one session's bridge, at Broker.SessionSocket: it gives the
// agent input and returns what the agent prints. Neither needs the other once
// the session exists, and a session outlives all connections.
//
// Each connection owns one goroutine, and one more while it is a writer's,
// which Close ends and waits for. Calls
// may be made from several goroutines. Each takes a context; one without a
// deadline gets a default of this package, so that nothing waits for ever. A
// call whose context ends may have had its effect. Only reading records waits
// as long as its context lets it: an agent may be silent for hours.
//
// # Reading records
//
// Session.Next returns whole records, in the order of their sequences, without
// gap or duplicate; what a bridge sends that is not so ends the connection
// with CodeProtocolViolation. Session.NextBatch does the same without
// allocating, for programs that want millions of records a second. The exit of
// the agent is the last record, and io.EOF follows it.
//
// Requests of the agent that wait for an answer (a dialog) come again with
// each attachment, in Session.PendingRecords, also when they were acknowledged.
//
// # Backpressure
//
// The connection reads ahead no more than SessionConfig.ReadAhead, then makes
// the bridge wait; the agent never waits for a client. Answers to calls come
// through the same socket and may stand behind records, so while a call waits
// the connection reads on, up to SessionConfig.MaxBuffer. Beyond that the call
// waits for the consumer too: read records from a goroutine of their own, or
// keep calls and reading in turn and MaxBuffer above what can come meanwhile.
// A bridge ends the connection of a client that takes nothing at all for half
// a minute; attach again and go on.
//
// # Going on after a crash
//
// A program that must not lose its place keeps three things on disk: the
// session's id; the cursor, by SaveCursor, up to which it has stored what it
// read; and each input with its id, written down before it is given.
//
//	r, err := s.Next(ctx)           // read
//	store(r)                        // durable here
//	client.SaveCursor(file, cursor) // then the place
//	s.Ack(ctx, r.Sequence)          // then the bridge may free it
//
// Its successor attaches with wire.FromCursor, with Takeover when the old one
// may still hang somewhere, gives the inputs again whose outcome it does not
// know, under their old ids, and gets what came after the cursor. Records that
// were seen but not stored come again with the same sequence; Session.Follow
// drops and counts them. The one that was replaced finds Session.Fenced closed
// and ErrFenced from Next.
//
// A writer has a lease (AttachOptions.Lease), which the connection renews by
// itself. A program that is stopped for longer loses its seat without anyone
// taking over, and finds ErrLeaseExpired when it goes on. A program that only
// hangs inside keeps it: taking over is for that.
//
// # Errors
//
// Errors are of type *wire.Error where they have a code that a program may
// decide by: those of the protocol, and the Code constants of this package.
// errors.Is also finds the cause, such as context.DeadlineExceeded or
// fs.ErrPermission.
package client
