package wire

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// AppendMessageFrame appends the frame of a message to dst. It returns dst as
// it was and CodeFrameTooLarge when the message is longer than max bytes, and
// the errors of Encode.
func AppendMessageFrame(dst []byte, m Message, max int) ([]byte, error) {
	start := len(dst)
	out, err := AppendMessage(append(dst, 0, 0, 0, 0), m)
	if err != nil {
		return dst, err
	}
	n := len(out) - start - lengthPrefix
	if n > max || uint64(n) > math.MaxUint32 {
		return dst, tooLarge(uint64(n), max)
	}
	binary.BigEndian.PutUint32(out[start:], uint32(n))
	return out, nil
}

// WriteMessage writes one message as one frame, with one call of Write. It
// writes nothing when the message can't be encoded or is longer than max
// bytes; after any other error the stream can't be used any more.
func WriteMessage(w io.Writer, m Message, max int) error {
	frame, err := AppendMessageFrame(nil, m, max)
	if err != nil {
		return err
	}
	_, err = w.Write(frame)
	return err
}

// Conn reads and writes the messages of one connection. One goroutine may read
// while another writes. Deadlines and closing stay with the owner of the
// connection below. It keeps a buffer for each direction, of at most the
// largest frame.
type Conn struct {
	r     *bufio.Reader
	w     io.Writer
	max   int
	in    []byte
	out   []byte
	limit int
}

// readBuffer holds a batch of small frames.
const readBuffer = 64 << 10

// NewConn makes a Conn that accepts and sends frames of at most max bytes:
// MaxBrokerFrame or MaxBridgeFrame.
func NewConn(rw io.ReadWriter, max int) *Conn {
	return &Conn{r: bufio.NewReaderSize(rw, readBuffer), w: rw, max: max, limit: max}
}

// LimitWrites lowers the size of the frames that are sent to what the peer's
// Hello said. It never raises it.
func (c *Conn) LimitWrites(peerMax uint64) {
	c.limit = int(min(uint64(c.limit), peerMax))
}

// Buffered returns how many bytes have come that no message was made of yet:
// when it is not 0, the next message has begun.
func (c *Conn) Buffered() int { return c.r.Buffered() }

// WriteLimit returns the size of the largest frame that may be sent, in bytes.
func (c *Conn) WriteLimit() int { return c.limit }

// ReadMessage reads the next message of the set, with the errors of ReadFrame
// and Decode. The data of Records is valid until the next read.
func (c *Conn) ReadMessage(set Set) (Message, error) {
	m, _, err := c.ReadRequest(set)
	return m, err
}

// ReadRequest reads the next message of the set for the side that answers, as
// DecodeRequest does. Fatal says whether the connection can go on after an
// error.
func (c *Conn) ReadRequest(set Set) (m Message, id uint64, err error) {
	payload, err := ReadFrame(c.r, c.max, c.in)
	if err != nil {
		return nil, 0, err
	}
	c.in = payload
	return DecodeRequest(set, payload)
}

// WriteMessage writes one message as one frame, with one call of Write, like
// the function of the same name.
func (c *Conn) WriteMessage(m Message) error {
	frame, err := AppendMessageFrame(c.out[:0], m, c.limit)
	if err != nil {
		return err
	}
	c.out = frame
	_, err = c.w.Write(frame)
	return err
}

// Fatal reports whether a connection has to end after this error of a read: a
// peer that breaks the framing or the encoding is told why and cut off; one
// whose message only means nothing is told why and may go on.
func Fatal(err error) bool {
	switch CodeOf(err) {
	case CodeUnknownMessage, CodeInvalidArgument, CodeInvalidAttachment, CodeInvalidSignal, CodeInvalidCursor, CodeInvalidInput, CodeInputTooLarge:
		return false
	}
	return err != nil
}

func tooLarge(n uint64, max int) *Error {
	return &Error{
		Code:    CodeFrameTooLarge,
		Message: fmt.Sprintf("the frame is %d bytes long, the limit is %d", n, max),
		Advice:  "split the payload into fragments",
	}
}
