package wire

import "slices"

var descriptorNames = []DescriptorName{
	FDStdin, FDStdout, FDStderr, FDExit, FDListener,
	FDStdoutSpool, FDStderrSpool, FDStdoutRead, FDStderrRead, FDIndex,
	FDInputSplice, FDInputData, FDControlLog, FDExitSpool, FDExitRead, FDCustody,
}

// Validate implements Message.
func (m Configure) Validate() error {
	return first(
		checkSession(m.Session),
		checkEpoch(m.Epoch, CodeInvalidMessage),
		check(m.Framing == FramingLines || m.Framing == FramingPi, CodeInvalidMessage, "there is no framing %.40q", m.Framing),
		checkDescriptors(m.Descriptors),
		checkUIDs("peerUids", m.PeerUIDs),
		checkOverflow(m.Overflow),
		checkLeaseMillis(m.LeaseMillis),
		check(m.MaxRecord > 0 && m.MaxInput > 0 && m.SpoolLimit > 0, CodeInvalidMessage, "the limits of a session are not zero"),
	)
}

func checkDescriptors(names []DescriptorName) error {
	return first(
		checkCount(CodeInvalidMessage, "descriptors", len(names), 1, MaxDescriptors),
		checkEach(names, func(n *DescriptorName) error {
			return check(slices.Contains(descriptorNames, *n), CodeInvalidMessage, "there is no descriptor %.40q", *n)
		}),
		checkUnique(CodeInvalidMessage, "descriptors", names),
	)
}

// Validate implements Message.
func (m Resume) Validate() error {
	return first(checkSession(m.Session), checkEpoch(m.Epoch, CodeInvalidMessage))
}

// Validate implements Message.
func (m Resumed) Validate() error { return first(checkDescriptors(m.Descriptors), checkExit(m.Exit)) }

// Validate implements Message.
func (m Ready) Validate() error {
	return check(m.NextSequence > 0, CodeInvalidMessage, "sequences go up from 1")
}

// Validate implements Message.
func (m BridgeSignal) Validate() error { return first(checkID(m.ID), checkSignal(m.Signal)) }

// Validate implements Message.
func (m BridgeAlive) Validate() error { return nil }

// Validate implements Message.
func (m BridgeInputClosed) Validate() error { return checkID(m.ID) }

// Validate implements Message.
func (m BridgeSeat) Validate() error { return checkID(m.ID) }

// Validate implements Message.
func (m BridgeExit) Validate() error {
	return first(
		checkID(m.ID),
		check(len(m.Status) <= MaxExitStatus, CodeInvalidMessage, "the status is %d bytes long, the limit is %d", len(m.Status), MaxExitStatus),
		m.Exit.Validate(),
	)
}

// Validate implements Message.
func (m BridgeExitReason) Validate() error {
	return first(checkID(m.ID), check(slices.Contains(reasons, m.Reason), CodeInvalidMessage, "there is no reason %.40q", m.Reason))
}
