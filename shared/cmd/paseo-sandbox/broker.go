package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
	"golang.org/x/sys/unix"
)

const socketVariable = "PASEO_SANDBOX_SOCKET"

// findSocket returns the broker's socket; longHelp tells the order.
func (a *app) findSocket() (string, error) {
	if a.socket != "" {
		return a.socket, nil
	}
	if path := a.getenv(socketVariable); path != "" {
		return path, nil
	}
	all, err := filepath.Glob(filepath.Join(a.runDir, "d", "*", "broker.sock"))
	if err != nil {
		return "", err
	}
	var usable []string
	for _, path := range all {
		if unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS) == nil {
			usable = append(usable, path)
		}
	}
	switch {
	case len(usable) == 1:
		return usable[0], nil
	case len(usable) > 1:
		return "", &wire.Error{
			Code:    codeSeveralBrokers,
			Message: "this user may use several deployments: " + strings.Join(usable, ", "),
			Advice:  "choose one with --socket or $" + socketVariable,
		}
	case len(all) > 0:
		return "", &wire.Error{
			Code:    wire.CodePermissionDenied,
			Message: "this user may use none of the deployments: " + strings.Join(all, ", "),
			Advice:  "ask the administrator to register this user (broker-admin deployment show), or run this as the user that is",
		}
	}
	return filepath.Join(a.runDir, "broker.sock"), nil
}

func (a *app) dialBroker(ctx context.Context) (*client.Broker, error) {
	path, err := a.findSocket()
	if err != nil {
		return nil, err
	}
	return client.DialBroker(ctx, path)
}

// findSession returns the session with this id, or with this beginning of one.
func findSession(ctx context.Context, b *client.Broker, name string) (wire.SessionInfo, error) {
	if id := wire.SessionID(name); id.Valid() {
		return b.Inspect(ctx, id)
	}
	all, err := b.List(ctx)
	if err != nil {
		return wire.SessionInfo{}, err
	}
	var found []wire.SessionInfo
	var ids []string
	for _, info := range all {
		if name != "" && strings.HasPrefix(string(info.Session), name) {
			found = append(found, info)
			ids = append(ids, string(info.Session))
		}
	}
	switch len(found) {
	case 0:
		return wire.SessionInfo{}, &wire.Error{
			Code:    wire.CodeUnknownSession,
			Message: fmt.Sprintf("there is no session %.40q", name),
			Advice:  "list the sessions with 'paseo-sandbox ls'",
		}
	case 1:
		return found[0], nil
	}
	return wire.SessionInfo{}, &wire.Error{
		Code:    codeAmbiguousSession,
		Message: fmt.Sprintf("%d sessions begin with %.40q: %s", len(found), name, strings.Join(ids, ", ")),
		Advice:  "give more of the id",
	}
}
