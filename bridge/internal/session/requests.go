package session

import (
	"cmp"
	"slices"

	"git.jb.codes/jb/paseo-sandbox/bridge/internal/spool"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

const (
	// maxRequestBytes bounds the records of all pending requests together.
	maxRequestBytes = 8 << 20
	maxRequests     = wire.MaxPending
)

// request is a record that waits for an answer.
type request struct {
	id       string
	hash     [32]byte // SHA-256 of id
	sequence uint64
	from, to int64 // in standard output
}

// requests are the pending ones, and the names of those that were answered.
// The session's mutex guards them.
type requests struct {
	open     map[string]*request
	answered map[[32]byte]struct{}
	bytes    int64
	loose    []spool.Range // answered since the last freeing
	reused   bool          // a name was used twice
}

func newRequests() requests {
	return requests{open: make(map[string]*request), answered: make(map[[32]byte]struct{})}
}

// full reports whether one more of the given length has no place.
func (r *requests) full(more int, length int64) bool {
	return len(r.open)+more >= maxRequests || r.bytes+length > maxRequestBytes
}

func (r *requests) add(q *request) {
	r.open[q.id] = q
	r.bytes += q.to - q.from
}

func (r *requests) remove(q *request) {
	delete(r.open, q.id)
	r.bytes -= q.to - q.from
}

// list returns those with a sequence below next, in order.
func (r *requests) list(next uint64) []wire.PendingRequest {
	var all []wire.PendingRequest
	for _, q := range r.open {
		if q.sequence < next {
			all = append(all, wire.PendingRequest{RequestID: q.id, Sequence: q.sequence})
		}
	}
	slices.SortFunc(all, func(a, b wire.PendingRequest) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return all
}

// ranges returns the places of all pending records.
func (r *requests) ranges() []spool.Range {
	all := make([]spool.Range, 0, len(r.open))
	for _, q := range r.open {
		all = append(all, spool.Range{From: q.from, To: q.to})
	}
	return all
}

// bytesBelow returns how many pending bytes lie below the floor.
func (r *requests) bytesBelow(floor int64) int64 {
	var n int64
	for _, q := range r.open {
		if q.to <= floor {
			n += q.to - q.from
		}
	}
	return n
}

// answer moves a request from the pending ones to those that were answered.
func (r *requests) answer(q *request) {
	r.remove(q)
	r.answered[q.hash] = struct{}{}
	r.loose = append(r.loose, spool.Range{From: q.from, To: q.to})
}
