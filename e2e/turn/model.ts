import { createServer } from "node:http";
import { appendFileSync } from "node:fs";

// A model server on the sandbox's own loopback. What it answers is decided by
// the last words of the user: "run COMMAND" becomes a call of the tool bash,
// whose result becomes a final text; everything else a text at once.
const key = "Bearer sk-e2e-turn";

const textOf = (content: any): string => (typeof content === "string" ? content : content.map((part: any) => part.text ?? "").join(""));

function answer(messages: any[]) {
	const last = messages.at(-1);
	if (last.role === "tool") {
		return { text: `final: the tool printed ${textOf(last.content).trim().split("\n").length} lines` };
	}
	const words = textOf(last.content);
	return words.startsWith("run ") ? { command: words.slice(4) } : { text: `final: ${words}` };
}

const server = createServer((request, response) => {
	let body = "";
	request.on("data", (part) => (body += part));
	request.on("end", () => {
		appendFileSync("/workspace/requests", `${request.headers.authorization === key}\n`);
		if (request.headers.authorization !== key) {
			response.writeHead(401).end();
			return;
		}
		const { text, command } = answer(JSON.parse(body).messages) as any;
		const say = (delta: any, finish_reason: string | null = null) =>
			response.write(`data: ${JSON.stringify({ id: "1", object: "chat.completion.chunk", created: 1, model: "m", choices: [{ index: 0, delta, finish_reason }] })}\n\n`);
		response.writeHead(200, { "content-type": "text/event-stream" });
		say({ role: "assistant", content: "" });
		if (command) {
			say({ tool_calls: [{ index: 0, id: `call-${Date.now()}`, type: "function", function: { name: "bash", arguments: JSON.stringify({ command }) } }] });
			say({}, "tool_calls");
		} else {
			say({ content: text });
			say({}, "stop");
		}
		response.end("data: [DONE]\n\n");
	});
});

export default function (pi: any) {
	server.listen(4141, "127.0.0.1");
	pi.registerCommand("ask", {
		description: "Asks for a confirmation and says what was answered",
		handler: async (_args: string, ctx: any) => {
			const yes = await ctx.ui.confirm("Go on?", "The daemon may be replaced while this is open.");
			ctx.ui.notify(`ask answered: ${yes}`, "info");
		},
	});
	pi.on("tool_call", async (event: any, ctx: any) => {
		if (event.input.command?.includes("guarded") && (await ctx.ui.confirm("Keep it from running?", event.input.command))) {
			return { block: true, reason: "kept from running" };
		}
	});
}
