package turn

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// Stored is a record that a daemon has on disk.
type Stored struct {
	Sequence uint64      `json:"sequence"`
	Stream   wire.Stream `json:"stream"`
	Data     []byte      `json:"data"`
}

func recordsFile(dir string) string { return filepath.Join(dir, "records") }

// Records reads what the daemons of a folder have stored, in the order in
// which they did.
func Records(dir string) ([]Stored, error) {
	b, err := os.ReadFile(recordsFile(dir))
	if os.IsNotExist(err) {
		return nil, nil
	}
	var all []Stored
	for line := range bytes.Lines(b) {
		var r Stored
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, err
}

// mend cuts off the part of a record that a kill left: the kernel may stop a
// write between two pages.
func mend(dir string) error {
	b, err := os.ReadFile(recordsFile(dir))
	if os.IsNotExist(err) {
		return nil
	}
	return errors.Join(err, os.Truncate(recordsFile(dir), int64(bytes.LastIndexByte(b, '\n')+1)))
}

// store keeps a record.
func (d *daemon) store(r client.Record) error {
	line, err := json.Marshal(Stored{Sequence: r.Sequence, Stream: r.Stream, Data: r.Data})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(recordsFile(d.config.StateDir), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(append(line, '\n'))
	return err
}
