package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/shared/client/clienttest"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// idlePi answers Pi's commands, ends a turn at the first abort and asks one
// question.
func idlePi(p *clienttest.Process) wire.Exit {
	fmt.Fprintln(p.Stdout, `{"type":"extension_ui_request","id":"q","method":"confirm"}`)
	settled := false
	for in := bufio.NewScanner(p.Stdin); in.Scan(); {
		var c struct{ Type, ID string }
		if json.Unmarshal(in.Bytes(), &c) != nil {
			return clienttest.Exited(1)
		}
		if c.Type == "extension_ui_response" {
			continue
		}
		if c.Type == "abort" && !settled {
			settled = true
			fmt.Fprintln(p.Stdout, `{"type":"agent_settled"}`)
		}
		fmt.Fprintf(p.Stdout, `{"type":"response","command":%q,"id":%q,"success":true,"data":{"isStreaming":false,"pendingMessageCount":1}}`+"\n", c.Type, c.ID)
	}
	return clienttest.Exited(0)
}

// R44 R45: cancel says what it ended, for people and for programs, and leaves
// the session and its records to the others.
func TestCancel(t *testing.T) {
	server := clienttest.Start(t, idlePi)
	id := string(server.Add(t).Session)
	status, out, errs := call(t, server, "", "cancel", id[:4])
	if want := id + ": cancelled its turn, 1 question; waiting for the next turn: 1 message\n"; status != 0 || out != want || errs != "" {
		t.Fatalf("%d, %q, %q", status, out, errs)
	}
	status, out, errs = call(t, server, "", "cancel", "--json", id)
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); status != 0 || err != nil || got["session"] != id || got["turn"] != false || got["dialogs"] != 0.0 || got["bash"] != 0.0 || got["queued"] != 1.0 {
		t.Fatalf("%d, %q, %q", status, out, errs)
	}
	// Nothing was acknowledged: a daemon finds all of it.
	observer := start(t, server, "attach", "--observe", id)
	observer.read(`{"type":"extension_ui_request"`)
}

// R42 R71: what stands in the way is said; the writer stays unless told.
func TestCancelRefused(t *testing.T) {
	server := clienttest.Start(t, idlePi)
	id := string(server.Add(t).Session)
	writer := start(t, server, "attach", id)
	writer.read(`{"type":"extension_ui_request"`)
	for name, c := range map[string]struct {
		args   []string
		status int
		says   string
	}{
		"a writer":   {[]string{id}, 1, "writer_already_attached"},
		"no session": {[]string{"ffff"}, 1, "unknown_session"},
		"no name":    {nil, 2, "usage"},
		"no time":    {[]string{"--timeout", "0s", id}, 2, "timeout"},
		"too long":   {[]string{"--timeout", "2h", id}, 2, "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			status, out, errs := call(t, server, "", append([]string{"cancel"}, c.args...)...)
			if status != c.status || out != "" || !strings.Contains(errs, c.says) {
				t.Errorf("%d, %q, %q", status, out, errs)
			}
		})
	}
	if status, _, errs := call(t, server, "", "cancel", "--takeover", id); status != 0 {
		t.Errorf("%d, %s", status, errs)
	}
	writer.wait(1)
	if !strings.Contains(writer.stderr.String(), "stale_writer") {
		t.Errorf("the writer says %s", writer.stderr.String())
	}
}
