package client

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// A cursor file is one line: this head, the epoch, the sequence.
const cursorHead = "paseo-sandbox-cursor 1"

// maxCursorFile is more than a cursor file can have, in bytes.
const maxCursorFile = 128

// SaveCursor writes a cursor durably: after it returns, a crash of the program
// or of the machine leaves this cursor, and a crash within leaves this or the
// one before. The file is replaced by rename(2) and is readable by its owner
// only; its folder must exist and be writable.
func SaveCursor(path string, cursor wire.Cursor) error {
	if err := checkCursor(cursor); err != nil {
		return err
	}
	folder := filepath.Dir(path)
	f, err := os.CreateTemp(folder, filepath.Base(path)+".tmp-*")
	if err != nil {
		return fmt.Errorf("save the cursor: %w", err)
	}
	_, err = fmt.Fprintf(f, "%s %s %d\n", cursorHead, cursor.Epoch, cursor.Sequence)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("save the cursor: %w", err)
	}
	if err := syncFolder(folder); err != nil {
		return fmt.Errorf("save the cursor: %w", err)
	}
	return nil
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// LoadCursor reads what SaveCursor wrote. errors.Is matches fs.ErrNotExist
// when there is no file; anything but a whole cursor is CodeInvalidCursorFile.
func LoadCursor(path string) (wire.Cursor, error) {
	f, err := os.Open(path)
	if err != nil {
		return wire.Cursor{}, fmt.Errorf("load the cursor: %w", err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxCursorFile))
	if err != nil {
		return wire.Cursor{}, fmt.Errorf("load the cursor: %w", err)
	}
	cursor, ok := parseCursorFile(content)
	if !ok {
		return wire.Cursor{}, &wire.Error{
			Code:    CodeInvalidCursorFile,
			Message: fmt.Sprintf("%s does not hold a cursor", path),
			Advice:  "if it was damaged, remove it and attach from the oldest record; nothing that was not acknowledged is lost",
		}
	}
	return cursor, nil
}

// parseCursorFile accepts exactly what SaveCursor writes.
func parseCursorFile(content []byte) (wire.Cursor, bool) {
	line, rest, found := bytes.Cut(content, []byte("\n"))
	fields := bytes.Split(line, []byte(" "))
	if !found || len(rest) > 0 || len(fields) != 4 || !bytes.HasPrefix(line, []byte(cursorHead+" ")) {
		return wire.Cursor{}, false
	}
	cursor, err := ParseCursor(string(fields[2]) + ":" + string(fields[3]))
	return cursor, err == nil
}

// ParseCursor reads the form EPOCH:SEQUENCE, which FormatCursor writes.
func ParseCursor(s string) (wire.Cursor, error) {
	cursor := wire.Cursor{}
	if len(s) > 17 && s[16] == ':' {
		cursor.Epoch = wire.Epoch(s[:16])
		n, err := strconv.ParseUint(s[17:], 10, 64)
		cursor.Sequence = n
		if err == nil && FormatCursor(cursor) == s && checkCursor(cursor) == nil {
			return cursor, nil
		}
	}
	return wire.Cursor{}, &wire.Error{
		Code:    wire.CodeInvalidCursor,
		Message: fmt.Sprintf("%.60q is not a cursor", s),
		Advice:  "a cursor is EPOCH:SEQUENCE, 16 hex digits and a number",
	}
}

// FormatCursor returns the cursor as EPOCH:SEQUENCE.
func FormatCursor(c wire.Cursor) string {
	return string(c.Epoch) + ":" + strconv.FormatUint(c.Sequence, 10)
}

func checkCursor(c wire.Cursor) error {
	if !c.Epoch.Valid() || c.Sequence > wire.MaxInteger {
		return &wire.Error{
			Code:    wire.CodeInvalidCursor,
			Message: fmt.Sprintf("%.60q is not a cursor", FormatCursor(c)),
			Advice:  "take the epoch from Attach and the sequence from a record",
		}
	}
	return nil
}
