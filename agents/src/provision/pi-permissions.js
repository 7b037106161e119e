// Asks the client before each tool call: a `select` whose title is JSON. The answer is JSON too, with `decision`, and perhaps
// with another `input`, or the `reason` that the model is told. Anything but "allow" blocks the call. In a terminal a person reads
// the title, and the answer is the option.
export default function (pi) {
  pi.on("tool_call", async (event, ctx) => {
    const asked = { agentProxy: "permission", toolCallId: event.toolCallId, tool: event.toolName, input: event.input };
    const title = ctx.mode === "tui" ? describe(event) : JSON.stringify(asked);
    const answer = read(await ctx.ui.select(title, ["allow", "deny"], { signal: ctx.signal }));
    if (answer.decision !== "allow") {
      return { block: true, reason: answer.reason ?? "The user rejected this tool call." };
    }
    if (answer.input) {
      for (const key of Object.keys(event.input)) delete event.input[key];
      Object.assign(event.input, answer.input);
    }
    return undefined;
  });
}

function describe({ toolName, input }) {
  const about = input?.command ?? input?.path ?? input?.pattern ?? JSON.stringify(input ?? {});
  return `Allow ${toolName}? ${about}`;
}

function read(answer) {
  if (answer === "allow" || answer === "deny") return { decision: answer };
  try {
    return JSON.parse(answer) ?? {};
  } catch {
    return {};
  }
}
