package audit

import (
	"fmt"
	"os"
	"sync"
	"time"

	"git.jb.codes/jb/paseo-sandbox/broker/internal/registry"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"github.com/hashicorp/go-hclog"
)

// Bounds of what one user can make the broker write: burst entries at once,
// and one each interval in the long run. Further ones are counted, and the
// count is written within countEvery.
const (
	burst      = 500
	interval   = 50 * time.Millisecond
	countEvery = time.Second
	// maxUsers is how many users are counted each by itself; further ones are
	// counted together, as nobody. One that is silent for remember is forgotten.
	maxUsers = 16
	remember = burst * interval
	nobody   = 1<<32 - 1
)

// Operations of the trail's own entries.
const (
	// OperationDropped counts the entries of one user that were too many.
	OperationDropped = "dropped"
	// OperationUnwritten counts entries that are in the log and not in the
	// file, because the file could not be written.
	OperationUnwritten = "unwritten"
)

// Trail is where entries go. It is safe for concurrent use.
type Trail struct {
	log hclog.Logger

	mu sync.Mutex
	// file is nil when the trail is the log.
	file *file
	// unwritten counts entries that are missing in the file, because of err.
	unwritten int
	err       error
	budgets   map[uint32]*budget
	counting  *time.Timer // writes the counts; nil while nothing was dropped
}

// budget is what one user may still write: at full it is as if the user had
// never written.
type budget struct {
	full    time.Time
	dropped int
}

// ToLog makes a trail of "audit" lines in the log.
func ToLog(log hclog.Logger) *Trail { return &Trail{log: log, budgets: make(map[uint32]*budget)} }

// Open makes the trail that is configured: in the log, or in a file of its own,
// in a folder of root's, whose last part is made if it is missing. What can't be written there goes
// to the log, as "audit_unwritten". Error: CodeInvalidConfig when the place is
// not one that root alone can change, or the file can't be opened. The caller
// closes the trail.
func Open(c registry.Audit, log hclog.Logger) (*Trail, error) {
	t := ToLog(log)
	if c.File == "" {
		return t, nil
	}
	f, err := openFile(c)
	if err != nil {
		return nil, err
	}
	t.file = f
	return t, nil
}

// Close writes what is still to be counted, and closes the file. The error is
// that of bringing it to the disk.
func (t *Trail) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count()
	if t.file == nil {
		return nil
	}
	return t.file.close()
}

// Record writes the entry, with the time of now. Of one that changed nothing
// only the count may be written, when its user has too many of them.
func (t *Trail) Record(e Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.Time = time.Now()
	if !e.Changed && e.Decision != Event && t.tooMany(e.UID, e.Time) {
		return
	}
	t.write(e)
}

// Happened writes what happened without a request: a start, a stop, the end of
// a session. The code is its reason; empty is "ok".
func (t *Trail) Happened(operation, deployment, session, code string) {
	if code == "" {
		code = "ok"
	}
	t.Record(Entry{
		UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), PID: uint32(os.Getpid()),
		Deployment: deployment, Operation: operation, Session: session, Decision: Event, Code: code,
	})
}

// Available says whether decisions can be recorded where they belong; if the
// last one could not, it tries again. Nothing new may be made while they
// can't. Error: CodeAuditUnavailable.
func (t *Trail) Available() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil || t.catchUp() {
		return nil
	}
	return &wire.Error{
		Code: wire.CodeAuditUnavailable, Message: "the broker can't record what it does, and makes no session until it can",
		Advice: "have the operator make room for the audit file, or mend it; broker-admin doctor says what is wrong", Err: t.err,
	}
}

// tooMany takes an entry from the user's budget, and reports whether there was
// nothing left of it.
func (t *Trail) tooMany(uid uint32, now time.Time) bool {
	if t.budgets[uid] == nil && len(t.budgets) >= maxUsers {
		t.forget(now)
		if len(t.budgets) >= maxUsers {
			uid = nobody
		}
	}
	b := t.budgets[uid]
	if b == nil {
		b = &budget{}
		t.budgets[uid] = b
	}
	if b.full.Before(now) {
		b.full = now
	}
	if b.full.Sub(now) < burst*interval {
		b.full = b.full.Add(interval)
		return false
	}
	b.dropped++
	if t.counting == nil {
		t.counting = time.AfterFunc(countEvery, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.count()
		})
	}
	return true
}

// forget removes the budgets that have been full for long.
func (t *Trail) forget(now time.Time) {
	for uid, b := range t.budgets {
		if b.dropped == 0 && now.Sub(b.full) > remember {
			delete(t.budgets, uid)
		}
	}
}

// count writes how many entries were dropped.
func (t *Trail) count() {
	if t.counting != nil {
		t.counting.Stop()
		t.counting = nil
	}
	for uid, b := range t.budgets {
		if b.dropped > 0 {
			t.write(Entry{
				Time: time.Now(), UID: uid, GID: nobody, Deployment: "(broker)", Operation: OperationDropped,
				Decision: Event, Code: string(wire.CodeTooManyRequests), Count: b.dropped,
			})
			b.dropped = 0
		}
	}
}

func (t *Trail) write(e Entry) {
	if t.file == nil {
		t.log.Info("audit", e.fields()...)
		return
	}
	// What is missing is told before what comes after it.
	if t.err == nil || t.catchUp() {
		if t.err = t.file.write(e.Append(nil)); t.err == nil {
			return
		}
	}
	t.unwritten++
	t.log.Error("audit_unwritten", append(e.fields(), "error", t.err.Error())...)
}

// catchUp writes how many entries are missing in the file, and reports whether
// that went well.
func (t *Trail) catchUp() bool {
	n := t.unwritten
	err := t.file.write(Entry{
		Time: time.Now(), UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), PID: uint32(os.Getpid()),
		Deployment: "(broker)", Operation: OperationUnwritten, Decision: Event, Code: string(wire.CodeAuditUnavailable), Count: n,
	}.Append(nil))
	if err != nil {
		t.err = fmt.Errorf("%d entries are missing: %w", n, err)
		return false
	}
	t.err, t.unwritten = nil, 0
	t.log.Warn("audit_written_again", "missing", n)
	return true
}
