package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"git.jb.codes/jb/paseo-sandbox/wire"
)

// readAttachments makes attachments of the files, under their own names: the
// extensions, then the MCP configuration unless its path is empty. What the
// protocol would refuse is refused here, with the file that is to blame.
func readAttachments(extensions []string, mcpConfig string) ([]wire.Attachment, error) {
	var all []wire.Attachment
	left := wire.MaxAttachmentBytes
	add := func(kind wire.AttachmentKind, path string) error {
		a, err := readAttachment(kind, path, left)
		if err != nil {
			return err
		}
		for _, other := range all {
			if other.Name == a.Name {
				return badAttachment(path, "has the name of another one", "rename one: in the sandbox they lie in the same folder")
			}
		}
		left -= len(a.Data)
		all = append(all, a)
		return nil
	}
	for _, path := range extensions {
		if err := add(wire.AttachmentExtension, path); err != nil {
			return nil, err
		}
	}
	if mcpConfig != "" {
		if err := add(wire.AttachmentMCPConfig, mcpConfig); err != nil {
			return nil, err
		}
	}
	if len(all) > wire.MaxAttachments {
		return nil, badAttachment(all[wire.MaxAttachments].Name, fmt.Sprintf("is one of %d files", len(all)), fmt.Sprintf("send at most %d", wire.MaxAttachments))
	}
	return all, nil
}

// readAttachment reads one file of at most left bytes.
func readAttachment(kind wire.AttachmentKind, path string, left int) (wire.Attachment, error) {
	a := wire.Attachment{Kind: kind, Name: filepath.Base(path)}
	if !wire.ValidName(a.Name) {
		return a, badAttachment(path, "has a name that can't be used in the sandbox", fmt.Sprintf("use letters, digits, '.', '_' and '-', at most %d, the first a letter or a digit", wire.MaxName))
	}
	f, err := os.Open(path)
	if err != nil {
		return a, unreadable(path, err)
	}
	defer f.Close()
	// One byte more than is possible is enough to be refused.
	if a.Data, err = io.ReadAll(io.LimitReader(f, int64(left)+1)); err != nil {
		return a, unreadable(path, err)
	}
	if len(a.Data) > left {
		return a, badAttachment(path, "is too large", fmt.Sprintf("all attachments together have at most %d bytes", wire.MaxAttachmentBytes))
	}
	return a, nil
}

func badAttachment(path, what, advice string) error {
	return &wire.Error{Code: wire.CodeInvalidAttachment, Message: fmt.Sprintf("the file %s %s", path, what), Advice: advice}
}

func unreadable(path string, cause error) error {
	return &wire.Error{
		Code:    codeUnreadableFile,
		Message: fmt.Sprintf("the file %s can't be read: %v", path, errors.Unwrap(cause)),
		Advice:  "check the path",
	}
}
