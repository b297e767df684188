package wire

import (
	"encoding/binary"
	"errors"
	"io"
)

// lengthPrefix is the size of a frame's length, in bytes.
const lengthPrefix = 4

// ReadFrame reads one frame of at most max bytes into buf, growing it as
// needed, and returns the payload, which is valid until buf is used again.
//
// It returns io.EOF when the stream ends between frames, CodeFrameTruncated
// when it ends inside one, and, having read only the length,
// CodeInvalidMessage when the frame is empty and CodeFrameTooLarge when it is
// longer than max. After any error the stream can't be used any more.
func ReadFrame(r io.Reader, max int, buf []byte) ([]byte, error) {
	var head [lengthPrefix]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, truncated(err)
		}
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 {
		return nil, &Error{Code: CodeInvalidMessage, Message: "the frame is empty", Advice: "send one CBOR item in each frame"}
	}
	if int64(n) > int64(max) {
		return nil, tooLarge(uint64(n), max)
	}
	if cap(buf) < int(n) {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := io.ReadFull(r, buf); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, truncated(io.ErrUnexpectedEOF)
		}
		return nil, err
	}
	return buf, nil
}

func truncated(cause error) *Error {
	return &Error{Code: CodeFrameTruncated, Message: "the stream ended inside a frame", Advice: "reconnect and attach at the last durable cursor", Err: cause}
}

// AppendFrame appends the frame of payload, which is not longer than the
// protocol's largest frame, to dst.
func AppendFrame(dst, payload []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(payload)))
	return append(dst, payload...)
}
