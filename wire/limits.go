package wire

// Limits of the protocol, version 1. A peer that exceeds one gets an Error
// with CodeInvalidMessage, or CodeFrameTooLarge, and the connection is closed.
const (
	// Version is the only protocol version that exists.
	Version = 1

	// MaxBrokerFrame bounds one frame on a broker socket, in bytes without
	// the length prefix.
	MaxBrokerFrame = 64 << 10
	// MaxBridgeFrame bounds one frame on a session's socket, in bytes
	// without the length prefix.
	MaxBridgeFrame = 1 << 20
	// MaxFragment is the largest payload that one record or input carries in
	// one frame, in bytes. Longer ones travel as fragments.
	MaxFragment = 256 << 10
	// MaxCustodyMessage bounds one packet between broker and bridge, in bytes.
	MaxCustodyMessage = 64 << 10

	// MaxInputID is the longest input id, in bytes.
	MaxInputID = 128
	// MaxText is the longest text field unless one says otherwise, in bytes.
	MaxText = 4096
	// MaxAttachments is the largest number of attachments to one session.
	MaxAttachments = 16
	// MaxAttachmentBytes bounds the contents of all attachments of one
	// session together, in bytes. It leaves room for the rest of the frame.
	MaxAttachmentBytes = 48 << 10
)
