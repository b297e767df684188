package pi

import (
	"encoding/json"
	"fmt"

	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// message is what a cancellation looks at in a record of Pi's. An agent can
// print anything, so each field may be missing or lie.
type message struct {
	Type    string          `json:"type"`
	ID      string          `json:"id"`
	Command string          `json:"command"`
	Success bool            `json:"success"`
	Error   string          `json:"error"`
	Data    json.RawMessage `json:"data"`
}

// parse returns an empty message for a record that is not one of Pi's.
func parse(r client.Record) *message {
	var m message
	if r.Stream != wire.StreamStdout || json.Unmarshal(r.Data, &m) != nil {
		return &message{}
	}
	return &m
}

func (m *message) refused() error {
	return &wire.Error{
		Code:    CodeRefused,
		Message: fmt.Sprintf("Pi refuses the command %.40q: %.200q", m.Command, m.Error),
		Advice:  "end the session if its turn has to end",
	}
}

// state is the part of the answer to get_state that tells of turns.
type state struct {
	IsStreaming         bool `json:"isStreaming"`
	PendingMessageCount int  `json:"pendingMessageCount"`
}

func (m *message) state() (s state, err error) {
	if err := json.Unmarshal(m.Data, &s); err != nil {
		return s, &wire.Error{
			Code:    CodeRefused,
			Message: "Pi's answer to get_state can't be read",
			Advice:  "end the session if its turn has to end",
			Err:     err,
		}
	}
	return s, nil
}

func (m *message) bashCancelled() bool {
	var result struct {
		Cancelled bool `json:"cancelled"`
	}
	return json.Unmarshal(m.Data, &result) == nil && result.Cancelled
}

// line is a command of Pi's without arguments.
func line(command, id string) string { return object(map[string]any{"type": command, "id": id}) }

// refusal answers a dialog of any kind.
func refusal(requestID string) string {
	return object(map[string]any{"type": "extension_ui_response", "id": requestID, "cancelled": true})
}

func object(o map[string]any) string {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // strings and a truth value have no error
	}
	return string(b) + "\n"
}
