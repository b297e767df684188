package storm

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"git.jb.codes/jb/paseo-sandbox/e2e/flow"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// ledger is what survives a daemon: written before it acknowledges a record,
// and after each input that was accepted.
type ledger struct {
	Cursor wire.Cursor `json:"cursor"`
	// Stdout, Stderr and Stdin say how far the streams are checked, and how
	// much input is known to be accepted, in Inputs inputs.
	Stdout flow.Position `json:"stdout"`
	Stderr flow.Position `json:"stderr"`
	Stdin  flow.Position `json:"stdin"`
	Inputs uint64        `json:"inputs"`
	// Duplicates are inputs that were sent again and had been accepted.
	Duplicates uint64 `json:"duplicates"`
	// Cut are streams that ended in the middle of a line, which was right so
	// far.
	Cut []wire.Stream `json:"cut,omitempty"`
	// Verdict is the agent's last line, Exit the last record.
	Verdict *flow.Verdict `json:"verdict,omitempty"`
	Exit    *wire.Exit    `json:"exit,omitempty"`
}

// Files of a daemon's folder.
const (
	ledgerFile = "ledger"
	stopFile   = "stop"
)

// save replaces the file: a daemon that is killed leaves the old ledger or the
// new one.
func (l *ledger) save(dir string) error {
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	partial := filepath.Join(dir, ledgerFile+".partial")
	if err := os.WriteFile(partial, b, 0o600); err != nil {
		return err
	}
	return os.Rename(partial, filepath.Join(dir, ledgerFile))
}

// loadLedger returns an empty ledger where there is none yet.
func loadLedger(dir string) (ledger, error) {
	var l ledger
	b, err := os.ReadFile(filepath.Join(dir, ledgerFile))
	if errors.Is(err, os.ErrNotExist) {
		return l, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	if err != nil {
		return l, fmt.Errorf("the daemon's ledger: %w", err)
	}
	return l, nil
}
