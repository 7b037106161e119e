// Gives Pi, which has no MCP client, the tools of the session's MCP servers: `mcp__SERVER__TOOL` each. The servers are in the file
// beside this one: [{ name, command, args, env } | { name, url, headers }]. Each is started with the conversation and ends with it.
// A server that does not answer in time, or fails, is reported, and the conversation begins without its tools.
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

const VERSION = "2025-06-18";
// Of a connection's beginning, in ms.
const PATIENCE = 30_000;
const MOST_PAGES = 64;
const MOST_TOOLS = 512;
// Characters of a result that the model gets.
const MOST_TEXT = 200_000;
// Characters of a server's message.
const MOST_MESSAGE = 16 * 1024 * 1024;

export default function (pi) {
  const servers = JSON.parse(readFileSync(new URL("./pi-mcp.json", import.meta.url), "utf8"));
  let open = [];
  // Tools of an earlier conversation in this process: they are replaced.
  const ours = new Set();
  pi.on("session_start", async (_event, ctx) => {
    const names = new Set(pi.getAllTools().map((tool) => tool.name));
    for (const name of ours) names.delete(name);
    await Promise.all(
      servers.map(async (server) => {
        const client = server.url ? new HttpClient(server) : new StdioClient(server);
        open.push(client);
        try {
          const tools = await withDeadline(client, offered(client));
          for (const tool of tools) register(pi, server.name, client, tool, names, ours);
        } catch (error) {
          client.close();
          ctx.ui.notify(`MCP server ${server.name}: ${words(error)}`, "error");
        }
      }),
    );
  });
  pi.on("session_shutdown", async () => {
    const closing = open;
    open = [];
    await Promise.all(closing.map((client) => client.close()));
  });
}

// Introduces us, and returns what the server offers.
async function offered(client) {
  const clientInfo = { name: "agent-proxy", version: "1" };
  const hello = await client.call("initialize", { protocolVersion: VERSION, capabilities: {}, clientInfo });
  client.version = hello?.protocolVersion ?? VERSION;
  await client.notify("notifications/initialized");
  const tools = [];
  let cursor;
  for (let page = 0; page < MOST_PAGES && tools.length < MOST_TOOLS; page++) {
    const list = await client.call("tools/list", cursor === undefined ? {} : { cursor });
    tools.push(...(list?.tools ?? []));
    cursor = list?.nextCursor;
    if (cursor === undefined || cursor === null) break;
  }
  return tools.slice(0, MOST_TOOLS);
}

function register(pi, server, client, tool, names, ours) {
  // Models take these characters, and this many.
  const name = `mcp__${server}__${tool.name}`.replace(/[^a-zA-Z0-9_-]/g, "_").slice(0, 64);
  if (names.has(name)) return;
  names.add(name);
  ours.add(name);
  pi.registerTool({
    name,
    label: tool.title ?? tool.annotations?.title ?? tool.name,
    description: tool.description ?? "",
    parameters: { type: "object", properties: {}, ...tool.inputSchema },
    async execute(_id, input, signal) {
      const result = await client.call("tools/call", { name: tool.name, arguments: input ?? {} }, signal);
      const content = (result?.content ?? []).map(part);
      if (content.length === 0 && result?.structuredContent !== undefined) {
        content.push(text(JSON.stringify(result.structuredContent)));
      }
      if (result?.isError) {
        throw new Error(content.map((one) => one.text ?? "").join("\n") || "the tool failed");
      }
      return { content, details: undefined };
    },
  });
}

// What the model gets of a part of a result.
function part(one) {
  if (one.type === "text") return text(one.text);
  if (one.type === "image") return { type: "image", data: one.data, mimeType: one.mimeType };
  if (one.type === "resource" && one.resource?.text !== undefined) return text(one.resource.text);
  return text(JSON.stringify(one));
}

function text(value) {
  const whole = String(value ?? "");
  const cut = whole.length > MOST_TEXT;
  return { type: "text", text: cut ? `${whole.slice(0, MOST_TEXT)}\n[${whole.length - MOST_TEXT} characters cut]` : whole };
}

function words(error) {
  return String(error?.cause?.message ?? error?.message ?? error).slice(0, 1000);
}

async function withDeadline(client, work) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`it did not answer in ${PATIENCE / 1000} s`)), PATIENCE);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
    // What fails later fails for nobody.
    work.catch(() => {});
  }
}

// What both transports share: requests that wait for their answers, and the server's own requests.
class Client {
  version = VERSION;
  last = 0;
  waiting = new Map();
  failure;

  call(method, params, signal) {
    if (this.failure) return Promise.reject(this.failure);
    if (signal?.aborted) return Promise.reject(new Error("cancelled"));
    const id = ++this.last;
    return new Promise((resolve, reject) => {
      const cancel = () => {
        if (!this.waiting.delete(id)) return;
        Promise.resolve(this.notify("notifications/cancelled", { requestId: id })).catch(() => {});
        reject(new Error("cancelled"));
      };
      const over = () => signal?.removeEventListener("abort", cancel);
      this.waiting.set(id, { resolve: (value) => (over(), resolve(value)), reject: (error) => (over(), reject(error)) });
      signal?.addEventListener("abort", cancel, { once: true });
      Promise.resolve(this.send({ jsonrpc: "2.0", id, method, params }, signal)).catch((error) => this.answer({ id, error }));
    });
  }

  notify(method, params) {
    return this.send({ jsonrpc: "2.0", method, ...(params && { params }) });
  }

  take(message) {
    if (Array.isArray(message)) return message.forEach((one) => this.take(one));
    if (message?.method === undefined) return this.answer(message);
    if (message.id === undefined) return undefined;
    const known = message.method === "ping";
    const error = { code: -32601, message: "this client has no such method" };
    const answer = { jsonrpc: "2.0", id: message.id, ...(known ? { result: {} } : { error }) };
    return Promise.resolve(this.send(answer)).catch(() => {});
  }

  answer({ id, result, error }) {
    const asked = this.waiting.get(id);
    if (!asked) return;
    this.waiting.delete(id);
    if (error) asked.reject(error instanceof Error ? error : new Error(error.message ?? JSON.stringify(error)));
    else asked.resolve(result);
  }

  fail(error) {
    this.failure ??= error;
    for (const id of [...this.waiting.keys()]) this.answer({ id, error });
  }
}

class StdioClient extends Client {
  constructor({ command, args, env }) {
    super();
    this.child = spawn(command, args, { env: { ...process.env, ...env }, stdio: ["pipe", "pipe", "ignore"] });
    this.child.on("error", (error) => this.fail(error));
    // After its last line.
    this.child.on("close", (code, signal) => this.fail(new Error(`it ended (${signal ?? `exit status ${code}`})`)));
    // How it ended says more, if it has.
    this.child.stdin.on("error", (error) => setTimeout(() => this.fail(error), 500).unref());
    createInterface({ input: this.child.stdout, crlfDelay: Infinity }).on("line", (line) => {
      if (line.length > MOST_MESSAGE) return this.fail(new Error("its message is too long"));
      let message;
      try {
        message = JSON.parse(line);
      } catch {
        return undefined;
      }
      return this.take(message);
    });
  }

  send(message) {
    if (this.failure) return Promise.reject(this.failure);
    this.child.stdin.write(`${JSON.stringify(message)}\n`);
    return undefined;
  }

  // The end of its input ends a server; one that stays is terminated.
  close() {
    this.fail(new Error("the session is over"));
    if (this.child.exitCode !== null || this.child.signalCode !== null || this.child.pid === undefined) return;
    this.child.stdin.end();
    const timer = setTimeout(() => this.child.kill(), 1000);
    timer.unref();
    this.child.once("exit", () => clearTimeout(timer));
    this.child.unref();
  }
}

class HttpClient extends Client {
  constructor({ url, headers }) {
    super();
    this.url = url;
    this.headers = headers;
    this.closing = new AbortController();
  }

  async send(message, signal) {
    const signals = [this.closing.signal, ...(signal ? [signal] : [])];
    const response = await fetch(this.url, {
      method: "POST",
      headers: this.allHeaders({ "content-type": "application/json", accept: "application/json, text/event-stream" }),
      body: JSON.stringify(message),
      signal: AbortSignal.any(signals),
    });
    this.session = response.headers.get("mcp-session-id") ?? this.session;
    if (!response.ok) {
      const body = (await response.text().catch(() => "")).slice(0, 500);
      throw new Error(`HTTP ${response.status}${body ? `: ${body}` : ""}`);
    }
    const type = response.headers.get("content-type") ?? "";
    if (type.startsWith("text/event-stream")) await this.readEvents(response);
    else if (type.startsWith("application/json")) this.take(await response.json());
    else await response.body?.cancel();
    // Its answer is to be in the response.
    if (message.method !== undefined && message.id !== undefined) {
      this.answer({ id: message.id, error: new Error("the response has no answer") });
    }
  }

  async readEvents(response) {
    const decoder = new TextDecoder();
    let rest = "";
    for await (const bytes of response.body) {
      rest += decoder.decode(bytes, { stream: true });
      const events = rest.split(/\r?\n\r?\n/);
      rest = events.pop();
      if (rest.length > MOST_MESSAGE) throw new Error("its message is too long");
      for (const event of events) this.takeEvent(event);
    }
    this.takeEvent(rest);
  }

  takeEvent(event) {
    const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
    const data = lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
    if (data) this.take(JSON.parse(data));
  }

  allHeaders(more) {
    const session = this.session ? { "mcp-session-id": this.session } : {};
    return { ...more, ...session, "mcp-protocol-version": this.version, ...this.headers };
  }

  async close() {
    if (this.failure) return;
    this.fail(new Error("the session is over"));
    this.closing.abort();
    if (!this.session) return;
    const left = { method: "DELETE", headers: this.allHeaders({}), signal: AbortSignal.timeout(1000) };
    await fetch(this.url, left).catch(() => {});
  }
}
