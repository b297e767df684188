package wire

// Limits of the protocol, version 1. They are enforced by Encode and by
// Decode alike, so nothing that one side can encode is refused by the other.
const (
	// Version is the only protocol version that exists.
	Version = 1

	// MaxBrokerFrame bounds one frame on a broker socket, in bytes without
	// the length prefix.
	MaxBrokerFrame = 64 << 10
	// MaxBridgeFrame bounds one frame on a session's socket, in bytes
	// without the length prefix.
	MaxBridgeFrame = 1 << 20
	// MinPeerFrame is the smallest Hello.MaxFrame. Every message but records
	// and input fits into it whatever its contents.
	MinPeerFrame = 64 << 10
	// MaxFragment is the largest payload that one record or input carries in
	// one frame, in bytes. Longer ones travel as fragments.
	MaxFragment = 256 << 10
	// MaxCustodyMessage bounds one packet between broker and bridge, in bytes.
	MaxCustodyMessage = 64 << 10

	// MaxInteger is the largest integer in any message: 2^53-1, the largest
	// that every client language represents exactly as a number (ECMAScript's
	// Number.MAX_SAFE_INTEGER). There are no negative ones.
	MaxInteger = 1<<53 - 1

	// MaxVersions is the largest number of versions in a Hello.
	MaxVersions = 16
	// MaxInputID is the longest input id, in bytes.
	MaxInputID = 128
	// MaxRequestID is the longest id of a pending request, in bytes. A
	// request of the agent with a longer one can't be pending.
	MaxRequestID = 128
	// MaxPending is the largest number of pending requests of a session.
	MaxPending = 256
	// MaxLease is the longest lease, in bytes.
	MaxLease = 128
	// MaxClient is the longest name of a client, in bytes.
	MaxClient = 128
	// MaxText is the longest text field unless one says otherwise, in bytes.
	MaxText = 4096
	// MaxName is the longest name of a workspace, profile or attachment and
	// the longest session id of an agent, in bytes.
	MaxName = 64
	// MaxDeployment is the longest deployment id, in bytes.
	MaxDeployment = 32
	// MaxModel is the longest model name, in bytes.
	MaxModel = 256
	// MaxSocketPath is the longest path of a Unix socket, in bytes
	// (unix(7): sun_path without its NUL).
	MaxSocketPath = 107
	// MaxPath is the longest path or folder in a request, in bytes.
	MaxPath = 1024
	// MaxPathElement is the longest element of one, in bytes (NAME_MAX).
	MaxPathElement = 255
	// MinLeaseMillis and MaxLeaseMillis bound a writer's lease, in
	// milliseconds.
	MinLeaseMillis = 1000
	MaxLeaseMillis = 3_600_000
	// MaxGraceMillis is the longest grace of a termination, in milliseconds.
	MaxGraceMillis = 60_000
	// MaxSessionPage is the largest number of sessions in one SessionList; a
	// page of this many always fits into a frame.
	MaxSessionPage = 32
	// MaxFindings is the largest number of findings in one Collected; a page of
	// this many always fits into a frame.
	MaxFindings = 64
	// MaxFinding is the longest name of a finding, in bytes.
	MaxFinding = 512
	// MaxPeerUIDs is the largest number of users of one deployment.
	MaxPeerUIDs = 64
	// MaxUID is the largest user or group id; 2^32-1 means nobody.
	MaxUID = 1<<32 - 2

	// MaxAttachments is the largest number of attachments to one session.
	MaxAttachments = 16
	// MaxAttachmentBytes bounds the contents of all attachments of one
	// session together, in bytes. It leaves room for the rest of the frame.
	MaxAttachmentBytes = 48 << 10

	// MaxDescriptors is the largest number of descriptors of one Configure.
	MaxDescriptors = 32
	// MaxExitStatus is the longest BridgeExit.Status, in bytes.
	MaxExitStatus = 4096
	// MaxExitRecord is the longest data of an exit record, in bytes.
	MaxExitRecord = 256
)

// Structural limits of any item, checked before anything is allocated. No
// message needs more; they bound what a hostile frame can make the decoder
// allocate.
const (
	// maxNesting is how deep arrays and maps may nest: a list of sessions,
	// each with an exit, is the deepest message.
	maxNesting = 4
	// maxElements is the longest array outside the records message.
	maxElements = 1024
	// maxPairs is the largest map.
	maxPairs = 32
	// maxKey is the longest map key, in bytes.
	maxKey = 32
)
