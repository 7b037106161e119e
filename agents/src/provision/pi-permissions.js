// Asks the client before each tool call: a `select` whose title is JSON. The answer is JSON too, with `decision`, and perhaps
// with another `input`, or the `reason` that the model is told. Anything but "allow" blocks the call.
export default function (pi) {
  pi.on("tool_call", async (event, ctx) => {
    const asked = { agentProxy: "permission", toolCallId: event.toolCallId, tool: event.toolName, input: event.input };
    const answer = read(await ctx.ui.select(JSON.stringify(asked), ["allow", "deny"], { signal: ctx.signal }));
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

function read(answer) {
  try {
    return JSON.parse(answer) ?? {};
  } catch {
    return {};
  }
}
