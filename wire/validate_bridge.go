package wire

import "slices"

// Validate implements Message.
func (m Attach) Validate() error {
	err := first(
		checkID(m.ID),
		check(m.Mode == ModeWriter || m.Mode == ModeObserver, CodeInvalidMessage, "there is no mode %.40q", m.Mode),
		check(m.From == FromOldest || m.From == FromCursor || m.From == FromLive, CodeInvalidMessage, "from can't be %.40q", m.From),
		check((m.Cursor != nil) == (m.From == FromCursor), CodeInvalidMessage, "a cursor is given exactly when from is %q", FromCursor),
		check(!m.Takeover || m.Mode == ModeWriter, CodeInvalidMessage, "only a writer can take over"),
		checkText(CodeInvalidMessage, "client", m.Client, 0, MaxClient),
		check(m.LeaseMillis == 0 || m.Mode == ModeWriter, CodeInvalidMessage, "only a writer has a lease"),
		checkLeaseMillis(m.LeaseMillis),
	)
	if err == nil && m.Cursor != nil {
		err = checkCursor(*m.Cursor)
	}
	return err
}

// Validate implements Message.
func (m Attached) Validate() error {
	return first(
		checkID(m.ID),
		checkSession(m.Session),
		checkEpoch(m.Epoch, CodeInvalidMessage),
		checkLease(m.Lease),
		checkLeaseMillis(m.LeaseMillis),
		checkPending(m.Pending),
		checkExit(m.Exit),
	)
}

// checkLeaseMillis passes 0, which means none or the default.
func checkLeaseMillis(millis uint64) error {
	return check(millis == 0 || millis >= MinLeaseMillis && millis <= MaxLeaseMillis, CodeInvalidMessage,
		"a lease of %d ms is not between %d and %d", millis, MinLeaseMillis, MaxLeaseMillis)
}

func checkOverflow(o Overflow) error {
	return check(o == "" || o == OverflowBackpressure || o == OverflowDropOldest, CodeInvalidMessage, "there is no overflow policy %.40q", o)
}

var stallReasons = []StallReason{"", StallSpoolLimit, StallRequests, StallStorage, StallFailure}

func checkPending(pending []PendingRequest) error {
	return first(
		checkCount(CodeInvalidMessage, "pending", len(pending), 0, MaxPending),
		checkEach(pending, func(p *PendingRequest) error {
			return first(
				checkText(CodeInvalidMessage, "requestId", p.RequestID, 1, MaxRequestID),
				check(p.Sequence > 0, CodeInvalidMessage, "a pending request has a sequence from 1"),
			)
		}),
	)
}

// Validate implements Message.
func (m Ack) Validate() error {
	return first(checkID(m.ID), checkLease(m.Lease), checkCursor(m.Cursor))
}

// Validate implements Message.
func (m Acked) Validate() error { return checkID(m.ID) }

// Validate implements Message.
func (m Input) Validate() error {
	return first(
		checkID(m.ID),
		checkLease(m.Lease),
		checkText(CodeInvalidInput, "inputId", m.InputID, 1, MaxInputID),
		check(len(m.Data) >= 1 && len(m.Data) <= MaxFragment, CodeInvalidInput, "data is %d bytes long; it has 1 to %d", len(m.Data), MaxFragment),
		check(m.Offset <= MaxInteger-MaxFragment, CodeInvalidInput, "the offset %d is too large", m.Offset),
	)
}

// Validate implements Message.
func (m Accepted) Validate() error {
	return first(checkID(m.ID), checkText(CodeInvalidMessage, "inputId", m.InputID, 1, MaxInputID))
}

// Validate implements Message.
func (m CloseInput) Validate() error { return first(checkID(m.ID), checkLease(m.Lease)) }

// Validate implements Message.
func (m Signal) Validate() error {
	return first(checkID(m.ID), checkLease(m.Lease), checkSignal(m.Signal))
}

// Validate implements Message.
func (m Terminate) Validate() error {
	return first(checkID(m.ID), checkLease(m.Lease), checkGrace(m.GraceMillis))
}

// Validate implements Message.
func (m Release) Validate() error { return first(checkID(m.ID), checkLease(m.Lease)) }

// Validate implements Message.
func (m Inspect) Validate() error { return checkID(m.ID) }

// Validate implements Message.
func (m Status) Validate() error {
	return first(
		checkID(m.ID),
		checkSession(m.Session),
		checkEpoch(m.Epoch, CodeInvalidMessage),
		checkText(CodeInvalidMessage, "writer", m.Writer, 0, MaxClient),
		checkLeaseMillis(m.LeaseMillis),
		check(m.LeaseRemainingMillis <= MaxLeaseMillis, CodeInvalidMessage, "more of a lease is left than any has"),
		check(m.Framing == "" || m.Framing == FramingLines || m.Framing == FramingPi, CodeInvalidMessage, "there is no framing %.40q", m.Framing),
		checkOverflow(m.Overflow),
		check(slices.Contains(stallReasons, m.StallReason), CodeInvalidMessage, "there is no stall reason %.40q", m.StallReason),
		checkPending(m.Pending),
		checkExit(m.Exit),
	)
}

// Validate implements Message.
func (m Ping) Validate() error { return checkID(m.ID) }

// Validate implements Message.
func (m Pong) Validate() error { return checkID(m.ID) }

// Validate implements Message.
func (m Fenced) Validate() error {
	return check(m.Generation > 0, CodeInvalidMessage, "generations go up from 1")
}
