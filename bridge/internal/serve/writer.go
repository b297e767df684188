package serve

import (
	"errors"
	"os"
	"time"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/replay"
	"git.jb.codes/jb/paseo-sandbox/bridge/internal/session"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

const (
	// sendBuffer keeps little in front of a control answer that comes while
	// records are being sent; the kernel doubles it (socket(7), SO_SNDBUF).
	sendBuffer = 128 << 10
	// writeStep is how much is written under one deadline, so that a slow
	// client is told from one that reads nothing.
	writeStep = 128 << 10
	// idleAfter is when a client that waits for records gives up its buffers.
	idleAfter = 5 * time.Second
)

// writer sends to one client: answers first, then records.
type writer struct {
	c      *conn
	limit  int // largest frame that the client takes, without its length
	client *session.Client
	reader *replay.Reader
	buf    []byte
}

func newWriter(c *conn) *writer { return &writer{c: c} }

// errDone ends the writer after the last item.
var errDone = errors.New("the connection is at its end")

// run writes until the connection ends, and closes it.
func (w *writer) run(hello <-chan int) {
	defer close(w.c.gone)
	defer w.c.nc.Close()
	w.limit = <-hello
	for {
		if err := w.control(); err != nil {
			if !errors.Is(err, errDone) {
				w.c.server.log.Info("connection_lost", "error", err.Error())
			}
			return
		}
		sent, err := w.records()
		if err != nil {
			w.c.server.log.Info("connection_lost", "error", err.Error())
			return
		}
		if !sent {
			w.wait()
		}
	}
}

// wait returns when there may be something to send.
func (w *writer) wait() {
	if w.reader == nil {
		<-w.c.queue.wake
		return
	}
	t := time.NewTimer(idleAfter)
	defer t.Stop()
	select {
	case <-w.c.queue.wake:
	case <-t.C:
		w.reader.Idle()
		<-w.c.queue.wake
	}
}

// control sends what is queued, together in one write.
func (w *writer) control() error {
	items := w.c.queue.take()
	if len(items) == 0 {
		return nil
	}
	w.buf = w.buf[:0]
	last := false
	for _, i := range items {
		if last {
			break
		}
		last = i.last
		var pending []byte
		if i.attach != nil {
			var err error
			if i.message, pending, err = w.open(i.attach); err != nil {
				return err
			}
		}
		if i.message != nil {
			frame, err := wire.AppendMessageFrame(w.buf, i.message, w.limit)
			if err != nil {
				return err
			}
			w.buf = frame
		}
		w.buf = append(w.buf, pending...)
	}
	if err := w.write(w.buf); err != nil {
		return err
	}
	if last {
		return errDone
	}
	return nil
}

// open begins an attachment: it returns the answer, and the frames of the
// requests that the answer promises. One that was answered since the client was
// attached is not promised, for it can't be shown any more.
func (w *writer) open(a *attachment) (attached wire.Attached, frames []byte, err error) {
	w.client = a.client
	w.reader = w.c.server.session.NewReader(a.next)
	attached = a.answer
	attached.Pending = nil
	for _, p := range a.answer.Pending {
		data, err := w.c.server.session.PendingRecord(p)
		if err != nil {
			return attached, nil, err
		}
		if data == nil {
			continue
		}
		attached.Pending = append(attached.Pending, p)
		if frames, err = w.appendPending(frames, p.Sequence, data); err != nil {
			return attached, nil, err
		}
	}
	return attached, frames, nil
}

// appendPending shows a pending request again, in fragments where needed.
func (w *writer) appendPending(frames []byte, sequence uint64, data []byte) (_ []byte, err error) {
	fragment := min(wire.MaxFragment, w.limit-wire.RecordOverhead-wire.RecordsOverhead)
	for offset := 0; offset < len(data); offset += fragment {
		r := wire.Record{Sequence: sequence, Stream: wire.StreamStdout, Offset: uint64(offset), Data: data[offset:]}
		if len(r.Data) > fragment {
			r.Data, r.Flags = r.Data[:fragment], wire.FlagMore
		}
		frames, err = wire.AppendMessageFrame(frames, wire.Records{Pending: true, Records: []wire.Record{r}}, w.limit)
		if err != nil {
			return nil, err
		}
	}
	return frames, nil
}

// records sends one frame of records, if there are any. A client that was
// overtaken by the writer's ack is told so, and the connection ends: what it
// would get next would not follow what it has.
func (w *writer) records() (sent bool, err error) {
	if w.reader == nil {
		return false, nil
	}
	frame, last, err := w.reader.Frame(w.limit)
	if errors.Is(err, replay.ErrOvertaken) {
		w.reader = nil
		w.c.fatal(0, w.c.server.session.Gap())
		return true, nil
	}
	if err != nil {
		w.reader = nil
		w.c.server.log.Error("replay_failed", "error", err.Error())
		w.c.fatal(0, unreadable(err))
		return true, nil
	}
	if frame == nil {
		return false, nil
	}
	if last > 0 {
		w.client.Sent(last)
	}
	return true, w.write(frame)
}

// unreadable tells a client why its records end.
func unreadable(cause error) *wire.Error {
	return &wire.Error{
		Code:    wire.CodeInternal,
		Message: "the session's records can't be read any more",
		Advice:  "the operator looks at the bridge's log and keeps the session's spool; the agent goes on",
		Err:     cause,
	}
}

// write sends everything; it fails when the client reads nothing for the
// server's stall time.
func (w *writer) write(b []byte) error {
	for len(b) > 0 {
		if err := w.c.nc.SetWriteDeadline(time.Now().Add(w.c.server.stall)); err != nil {
			return err
		}
		n, err := w.c.nc.Write(b[:min(len(b), writeStep)])
		if err != nil && (n == 0 || !errors.Is(err, os.ErrDeadlineExceeded)) {
			return err
		}
		b = b[n:]
	}
	return nil
}
