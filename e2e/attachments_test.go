package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"git.jb.codes/jb/paseo-sandbox/e2e/harness"
	"git.jb.codes/jb/paseo-sandbox/shared/client"
	"git.jb.codes/jb/paseo-sandbox/shared/rootonly"
	"git.jb.codes/jb/paseo-sandbox/wire"
)

// adapter is an extension that, as an MCP adapter does, takes the option
// --mcp-config; it tells what it finds there.
const adapter = `import { accessSync, chmodSync, constants, readdirSync, readFileSync, statSync, unlinkSync, writeFileSync } from "node:fs";

const outcome = (f: () => unknown) => { try { return String(f() ?? "ok"); } catch (e: any) { return e.code; } };

export default function (pi: any) {
	pi.registerFlag("mcp-config", { description: "a file", type: "string" });
	pi.registerCommand("look", {
		description: "Tells of the attachments",
		handler: async (_args: string, ctx: any) => {
			const file = pi.getFlag("mcp-config");
			ctx.ui.notify("found: " + JSON.stringify({
				file,
				content: outcome(() => readFileSync(file, "utf8")),
				mode: outcome(() => statSync(file).mode.toString(8) + " " + statSync(file).uid),
				list: outcome(() => readdirSync("/attachments").sort().join(" ")),
				write: outcome(() => writeFileSync(file, "x")),
				add: outcome(() => writeFileSync("/attachments/new", "x")),
				remove: outcome(() => unlinkSync(file)),
				chmod: outcome(() => chmodSync(file, 0o777)),
				execute: outcome(() => accessSync(file, constants.X_OK)),
			}), "info");
		},
	});
}
`

// R10 R15: what a client attaches appears below /attachments, read-only, under
// its own name, and Pi gets the MCP configuration as its option.
func TestAttachments(t *testing.T) {
	rootonly.Test(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), hostileTimeout)
	defer cancel()
	s := startSystem(t, harness.Options{})
	config := wire.Attachment{Kind: wire.AttachmentMCPConfig, Name: "mcp.json", Data: []byte(`{"mcpServers":{}}`)}
	_, session, _ := startSession(ctx, t, s, client.CreateOptions{Attachments: []wire.Attachment{
		{Kind: wire.AttachmentExtension, Name: "adapter.ts", Data: []byte(adapter)}, config,
		{Kind: wire.AttachmentExtension, Name: "Adapter.ts", Data: []byte("export default function () {}\n")},
	}})
	if _, err := session.Input(ctx, "look", []byte(`{"type":"prompt","id":"1","message":"/look"}`+"\n")); err != nil {
		t.Fatal(err)
	}
	compare(t, awaitFound(ctx, t, session), map[string]string{
		"file": "/attachments/mcp.json", "content": `{"mcpServers":{}}`, "mode": "100444 0", "list": "Adapter.ts adapter.ts mcp.json",
		"write": "EACCES", "add": "EACCES", "remove": "EACCES", "chmod": "EPERM", "execute": "EACCES",
	})

	// Without an adapter nobody takes the option.
	_, session, _ = startSession(ctx, t, s, client.CreateOptions{Attachments: []wire.Attachment{config}})
	said := ""
	for {
		r, err := session.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if r.Stream != wire.StreamExit {
			said += string(r.Data)
			continue
		}
		if exit, err := wire.DecodeExit(r.Data); err != nil || exit.Code != 1 || !strings.Contains(said, "Unknown option: --mcp-config") {
			t.Errorf("%+v, %v, %s", exit, err, said)
		}
		return
	}
}

// awaitFound reads records until the adapter's.
func awaitFound(ctx context.Context, t *testing.T, session *client.Session) map[string]string {
	t.Helper()
	for {
		r, err := session.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(r.Data, []byte("found: ")) {
			if r.Stream != wire.StreamStdout {
				t.Fatalf("stream %d says %s", r.Stream, r.Data)
			}
			continue
		}
		var request struct {
			Message string `json:"message"`
		}
		if err := json.Unmarshal(r.Data, &request); err != nil {
			t.Fatal(err)
		}
		var found map[string]string
		if err := json.Unmarshal([]byte(strings.TrimPrefix(request.Message, "found: ")), &found); err != nil {
			t.Fatal(err)
		}
		return found
	}
}
