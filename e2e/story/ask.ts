export default function (pi: any) {
	pi.registerCommand("ask", {
		description: "Asks for a confirmation and says what was answered",
		handler: async (_args: string, ctx: any) => {
			const answer = await ctx.ui.confirm("Go on?", "The daemon may be replaced while this is open.");
			ctx.ui.notify(`ask answered: ${answer}`, "info");
		},
	});
}
