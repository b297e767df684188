// Package wire is the protocol: frames, the strict CBOR codec, the messages
// that clients exchange with the broker and with a session's bridge, and the
// private messages between broker and bridge.
//
// Every message is one frame: a 4-byte big-endian length and one CBOR item
// (RFC 8949) in core deterministic encoding. Control messages are maps with a
// "type" key; the hot records message is a compact array. messages.cddl is the
// grammar, testdata/vectors the shared test vectors.
package wire
