// Has Pi's own screen speak its RPC beside the person: events go to one pipe, commands come from another, both beside this file.
// Events have the names and members that they have in RPC mode; a few commands are known. Before each tool call the client is asked,
// and the person at the screen: the first answer counts.
import { constants, openSync } from "node:fs";
import { Socket } from "node:net";
import { createInterface } from "node:readline";

const EVENTS = [
  "agent_start", "agent_end", "agent_settled", "message_start", "message_end", "tool_execution_start", "tool_execution_update",
  "tool_execution_end", "session_info_changed",
];
// Of the client, before the person is asked: a rule may have answered by then. In ms.
const HEAD_START = 150;

export default function (pi) {
  const pipe = (name, flags) => openSync(new URL(name, import.meta.url), flags | constants.O_NONBLOCK);
  const reports = new Socket({ fd: pipe("./screen-reports", constants.O_RDWR), readable: false, writable: true });
  const commands = new Socket({ fd: pipe("./screen-commands", constants.O_RDWR), readable: true, writable: false });
  // Neither keeps Pi from its end.
  for (const socket of [reports, commands]) socket.on("error", () => {}).unref();
  const tell = (message) => reports.write(`${JSON.stringify(message)}\n`);
  const open = new Map();
  let ctx;
  // Commands that came before the conversation was open.
  let early = [];
  let lastDialog = 0;

  pi.on("session_start", (_event, now) => {
    ctx = now;
    tell({ type: "screen_conversation", ...state() });
    const waiting = early;
    early = [];
    for (const command of waiting) handle(command);
  });
  pi.on("session_shutdown", () => {
    commands.destroy();
  });
  for (const name of EVENTS) {
    pi.on(name, (event, now) => {
      ctx = now;
      // Their lists of messages are in others.
      tell({ ...event, type: name, messages: undefined });
    });
  }
  pi.on("message_update", (event) => {
    tell({ type: "message_update", assistantMessageEvent: { ...event.assistantMessageEvent, partial: undefined } });
  });
  pi.on("input", (event) => {
    if (event.source === "interactive") tell({ type: "screen_prompt", text: event.text });
  });
  if (process.env.AGENT_PROXY_PI_ASKS) {
    pi.on("tool_call", async (event, now) => {
      const verdict = await ask(event, now);
      if (verdict.decision !== "allow") {
        return { block: true, reason: verdict.reason ?? "The user rejected this tool call." };
      }
      if (verdict.input) {
        for (const key of Object.keys(event.input)) delete event.input[key];
        Object.assign(event.input, verdict.input);
      }
      return undefined;
    });
  }

  // Asks the client and the person.
  async function ask(event, now) {
    const id = `screen-${++lastDialog}`;
    const asked = { agentProxy: "permission", toolCallId: event.toolCallId, tool: event.toolName, input: event.input };
    const dismissal = new AbortController();
    const cancel = () => dismissal.abort();
    now.signal?.addEventListener("abort", cancel, { once: true });
    const client = new Promise((resolve) => open.set(id, resolve));
    tell({ type: "extension_ui_request", id, method: "select", title: JSON.stringify(asked), options: ["allow", "deny"] });
    const person = async () => {
      await Promise.race([client, new Promise((resolve) => setTimeout(resolve, HEAD_START))]);
      if (!open.has(id)) return new Promise(() => {});
      const option = await now.ui.select(describe(event), ["allow", "deny"], { signal: dismissal.signal });
      if (!open.delete(id)) return new Promise(() => {});
      const decision = option === "allow" ? "allow" : "deny";
      tell({ type: "screen_answered", id, option: decision });
      return { decision };
    };
    try {
      return await Promise.race([client, person()]);
    } finally {
      now.signal?.removeEventListener("abort", cancel);
      dismissal.abort();
    }
  }

  function state() {
    const conversation = ctx.sessionManager;
    return {
      model: ctx.model && { provider: ctx.model.provider, id: ctx.model.id, contextWindow: ctx.model.contextWindow },
      thinkingLevel: ctx.thinkingLevel ?? pi.getThinkingLevel?.(),
      isStreaming: !ctx.isIdle(),
      isCompacting: false,
      sessionFile: conversation.getSessionFile(),
      sessionId: conversation.getSessionId(),
      messageCount: conversation.getEntries().length,
      pendingMessageCount: ctx.hasPendingMessages() ? 1 : 0,
    };
  }

  function handle(command) {
    if (command.type === "extension_ui_response") {
      const resolve = open.get(command.id);
      if (open.delete(command.id)) resolve(read(command.value));
      return;
    }
    const answer = (more) => tell({ id: command.id, type: "response", command: command.type, ...more });
    try {
      answer({ success: true, data: carriedOut(command) });
    } catch (error) {
      answer({ success: false, error: String(error?.message ?? error) });
    }
  }

  function carriedOut(command) {
    switch (command.type) {
      case "get_state":
        return state();
      case "prompt":
      case "steer": {
        const pictures = command.images ?? [];
        const content = pictures.length ? [{ type: "text", text: command.message }, ...pictures] : command.message;
        const deliverAs = command.type === "steer" ? "steer" : "followUp";
        pi.sendUserMessage(content, ctx.isIdle() ? {} : { deliverAs });
        return undefined;
      }
      case "abort":
        ctx.abort();
        return undefined;
      case "clear_queue":
        return undefined;
      case "set_thinking_level":
        pi.setThinkingLevel(command.level);
        return undefined;
      default:
        throw new Error("this command is not known beside the screen: type it there, or start the session with --surface machine");
    }
  }

  createInterface({ input: commands, crlfDelay: Infinity }).on("line", (line) => {
    let command;
    try {
      command = JSON.parse(line);
    } catch {
      return;
    }
    if (ctx) handle(command);
    else early.push(command);
  });
}

function describe({ toolName, input }) {
  const about = input?.command ?? input?.path ?? input?.pattern ?? JSON.stringify(input ?? {});
  return `Allow ${toolName}? ${about}`;
}

function read(answer) {
  try {
    return JSON.parse(answer) ?? {};
  } catch {
    return {};
  }
}
