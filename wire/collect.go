package wire

// Collect makes the broker remove what sessions have left behind, and do at
// once what policies have due; admin socket only. Collected answers.
type Collect struct {
	Type string `cbor:"type"`
	ID   uint64 `cbor:"id"`
	// DryRun changes nothing: what would be removed is listed.
	DryRun bool `cbor:"dryRun,omitempty"`
	// After is the last session of the page before; empty for the first page.
	After SessionID `cbor:"after,omitempty"`
}

// Collected lists what was found in the order of sessions, all of one session
// together. More says that another page follows.
type Collected struct {
	Type     string    `cbor:"type"`
	ID       uint64    `cbor:"id"`
	Findings []Finding `cbor:"findings"`
	More     bool      `cbor:"more,omitempty"`
}

// Finding is one thing that nobody needs.
type Finding struct {
	// Session is the id that the thing bears.
	Session SessionID `cbor:"session"`
	// Kind is one of the Found constants.
	Kind FindingKind `cbor:"kind"`
	// Name says which thing, at most MaxFinding bytes: a path of the host, or
	// the session's id.
	Name string `cbor:"name"`
	// Reason says why nobody needs it, one of the Why constants.
	Reason Code `cbor:"reason"`
	// AgeMillis is how old the thing is, or for how long the session has had no
	// writer; 0 when that is not known.
	AgeMillis uint64 `cbor:"ageMillis,omitempty"`
	// Failed is the code of what kept it from being removed; empty means that
	// it is gone, or that this was a dry run.
	Failed Code `cbor:"failed,omitempty"`
}

// FindingKind is what kind of thing was found; it has the form of a Code.
type FindingKind = Code

// Kinds of findings. A session has a record; the others have none.
const (
	FoundSession   FindingKind = "session"
	FoundMount     FindingKind = "mount"
	FoundCustody   FindingKind = "custody_socket"
	FoundSocket    FindingKind = "session_socket"
	FoundBundle    FindingKind = "bundle"
	FoundSpool     FindingKind = "spool"
	FoundHome      FindingKind = "home"
	FoundLoop      FindingKind = "loop_device"
	FoundCgroup    FindingKind = "cgroup"
	FoundContainer FindingKind = "container"
	FoundProcess   FindingKind = "process"
)

// Reasons of findings.
const (
	// WhyNoRecord: no session has this id.
	WhyNoRecord Code = "no_record"
	// WhyHalfCreated and WhyHalfDeleted: its making was undone, or its deletion
	// done, in part.
	WhyHalfCreated Code = "half_created"
	WhyHalfDeleted Code = "half_deleted"
	// WhyAbandoned: it had no writer for longer than its profile allows.
	WhyAbandoned Code = "abandoned"
	// WhyExpired: it has ended, and was kept for as long as its profile says.
	WhyExpired Code = "expired"
	// WhyReleased: it has ended, and its writer needs it no more.
	WhyReleased Code = "released"
)

// Kind implements Message.
func (Collect) Kind() string { return "collect" }

// Kind implements Message.
func (Collected) Kind() string { return "collected" }

// Validate implements Message.
func (m Collect) Validate() error { return ListSessions{ID: m.ID, After: m.After}.Validate() }

// Validate implements Message.
func (m Collected) Validate() error {
	return first(
		checkID(m.ID),
		checkCount(CodeInvalidMessage, "findings", len(m.Findings), 0, MaxFindings),
		checkEach(m.Findings, func(f *Finding) error { return f.Validate() }),
	)
}

// Validate checks the limits of the fields.
func (f Finding) Validate() error {
	return first(
		checkSession(f.Session),
		checkText(CodeInvalidMessage, "name", f.Name, 1, MaxFinding),
		check(f.Kind.Valid() && f.Reason.Valid() && (f.Failed == "" || f.Failed.Valid()), CodeInvalidMessage, "a finding's kind, reason and failure are snake_case"),
	)
}
