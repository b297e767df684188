package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// maxLine bounds what is held of a line without end, in bytes.
const maxLine = 128 << 20

// chunkSize is the largest chunk of input, in bytes.
const chunkSize = 64 << 10

// input is standard input, cut into inputs of the agent.
type input struct {
	pieces chan []byte
	quit   chan struct{}
	// err is why the pieces ended, unless at the end of the file. It is read
	// after pieces is closed.
	err error

	prefix string
	count  int
	// taken is the piece that was not accepted yet.
	taken []byte
	// refused counts the pieces that the bridge did not take.
	refused int
}

// readInput reads until the end, or until quit is closed and a read returns:
// nothing can end a read of a standard input, so its goroutine may live as
// long as the process.
func readInput(r io.Reader, lines bool) *input {
	var random [6]byte
	_, _ = rand.Read(random[:]) // it never fails (crypto/rand)
	in := &input{pieces: make(chan []byte), quit: make(chan struct{}), prefix: "cli-" + hex.EncodeToString(random[:])}
	go func() {
		defer close(in.pieces)
		b := bufio.NewReaderSize(r, chunkSize)
		for {
			piece, err := nextPiece(b, lines)
			if len(piece) > 0 {
				select {
				case in.pieces <- piece:
				case <-in.quit:
					return
				}
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					in.err = err
				}
				return
			}
		}
	}()
	return in
}

// nextPiece returns what can be given to the agent; it may come with an error.
func nextPiece(r *bufio.Reader, lines bool) ([]byte, error) {
	if !lines {
		buf := make([]byte, chunkSize)
		n, err := r.Read(buf)
		return buf[:n], err
	}
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
		if len(line) > maxLine {
			return nil, &wire.Error{
				Code:    wire.CodeInputTooLarge,
				Message: fmt.Sprintf("a line of standard input is longer than %d bytes", maxLine),
				Advice:  "send shorter lines, or chunks (--input chunks) if the agent does not read lines",
			}
		}
	}
}

// id names the piece that was taken.
func (in *input) id() string { return fmt.Sprintf("%s-%d", in.prefix, in.count) }

// giveInput gives the agent what comes on standard input, until the end of
// either. A piece whose fate is not known when the connection is lost is given
// again, under its id, over the next one.
func (r *relay) giveInput(ctx context.Context, cancel context.CancelCauseFunc) {
	in := r.input
	for {
		if in.taken == nil {
			piece, ok, done := in.take(ctx)
			if done {
				return
			}
			if !ok {
				r.endInput(ctx, cancel)
				return
			}
			in.taken = piece
			in.count++
		}
		_, err := r.session.Input(ctx, in.id(), in.taken)
		switch code := wire.CodeOf(err); {
		case code == "":
			in.taken = nil
		case ctx.Err() != nil, code == client.CodeConnectionLost, code == wire.CodeStaleWriter:
			return
		case code == wire.CodeTimeout:
			// The same id makes it safe to try again.
		case code == wire.CodeRuntimeNotWritable:
			// The agent has ended or was told to.
			if !r.interrupts.interrupted() {
				r.app.tell(err)
			}
			return
		default:
			in.taken = nil
			in.refused++
			r.app.tell(err)
		}
	}
}

// take waits for a piece; ok is false at the end of standard input, done when
// ctx has ended.
func (in *input) take(ctx context.Context) (piece []byte, ok, done bool) {
	select {
	case piece, ok = <-in.pieces:
		return piece, ok, false
	case <-ctx.Done():
		return nil, false, true
	}
}

// endInput tells the agent the end of standard input, or detaches.
func (r *relay) endInput(ctx context.Context, cancel context.CancelCauseFunc) {
	if err := r.input.err; err != nil {
		r.app.tell(err)
		r.input.refused++
	}
	if r.detachOnEOF {
		cancel(errDetach)
		return
	}
	for {
		err := r.session.CloseInput(ctx)
		switch code := wire.CodeOf(err); {
		case code == wire.CodeTimeout && ctx.Err() == nil:
			// The agent takes its time to read what it was given.
		case err == nil, ctx.Err() != nil, code == client.CodeConnectionLost, code == wire.CodeStaleWriter:
			return
		default:
			cancel(err)
			return
		}
	}
}
