// `agent-proxy acp`, `agent-proxy mcp` and /mcp under structured garbage: no panic, an answer to each live request, no growth, nothing left.
// usage: faces.mjs acp|mcp|mcp-http [--minutes N] [--seed S]. Prints a line a minute and one at the end.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync, rmSync } from "node:fs";
import http from "node:http";
import net from "node:net";
import path from "node:path";
import { makePlace, processesOf, program, run, soon, untilNone, waitFor } from "../acp/place.mjs";
import { Random, corrupt, id, mangle } from "./garbage.mjs";

const [face, ...flags] = process.argv.slice(2);
const flag = (name, otherwise) => { const at = flags.indexOf(`--${name}`); return at < 0 ? otherwise : Number(flags[at + 1]); };
const minutes = flag("minutes", 1);
const seed = flag("seed", Date.now() % 1_000_000);
const random = new Random(seed);
// Memory of the daemon may differ by so much: its allocator's, and the pages of its log.
const MOST_GROWN_MIB = 24;
// An unknown method, and what rmcp answers for a session of the protocol that was ended meanwhile.
const EXPECTED_5XX = /^HTTP\/1.1 501 |Session service terminated$/;
const place = makePlace();
const counts = { connections: 0, messages: 0, answers: 0, live: 0 };

// One request to the daemon, on its own socket.
function api(method, route, body) {
  return soon(`${method} ${route}`, new Promise((resolve, reject) => {
    const headers = body === undefined ? {} : { "content-type": "application/json" };
    const request = http.request({ socketPath: place.env.AGENT_PROXY_SOCKET, method, path: route, headers }, (answer) => {
      let text = "";
      answer.on("data", (part) => { text += part; });
      answer.on("end", () => resolve({ status: answer.statusCode, body: text === "" ? null : JSON.parse(text) }));
    });
    request.on("error", reject);
    request.end(body === undefined ? undefined : JSON.stringify(body));
  }));
}

// Ends and forgets all sessions, so that memory is that of the daemon alone.
async function forgetSessions() {
  for (;;) {
    const { body: sessions } = await api("GET", "/v1/sessions?limit=100");
    if (sessions.length === 0) return;
    for (const { sessionId } of sessions) {
      const killed = await api("POST", `/v1/sessions/${encodeURIComponent(sessionId)}/kill`, { graceMs: 0 });
      assert.ok(killed.status < 500, JSON.stringify(killed));
      const forgotten = await api("DELETE", `/v1/sessions/${encodeURIComponent(sessionId)}`);
      assert.ok(forgotten.status < 500, JSON.stringify(forgotten));
    }
  }
}

const memoryMib = (pid) => Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))[1]) / 1024;

const agent = ["--agent", "acp", "--", program, "fake-agent", "--modes", "--store", path.join(place.folder, "store")];
const scripts = ["say hi", "think hm\ntool Read\nedit a.txt\nplan 1/3\nsay hello", "ask to write", "wait", "say a\nwait", "history", "commands review", "title Plums", "blocks"];

// Requests of an editor, as they would be right.
function acpMessage(state) {
  const sessionId = state.session ?? "nobody";
  const prompt = [{ type: "text", text: random.pick(scripts) }, { type: "image", mimeType: "image/png", data: "iVBORw0KGgo=" },
    { type: "resource_link", name: "a", uri: `file://${place.work}/a.txt` }, { type: "resource", resource: { uri: "file:///a", text: "b" } }];
  const servers = [{ name: "a", command: "/bin/false", args: [], env: [{ name: "A", value: "b" }] }, { type: "http", name: "b", url: "http://127.0.0.1:9/", headers: [] }];
  return random.pick([
    ["initialize", { protocolVersion: 1, clientCapabilities: { fs: { readTextFile: true }, terminal: true } }],
    ["authenticate", { methodId: "a" }],
    ["session/load", { sessionId, cwd: place.work, mcpServers: servers }],
    ["session/resume", { sessionId, cwd: place.work, mcpServers: [] }],
    ["session/fork", { sessionId, cwd: place.work, mcpServers: [] }],
    ["session/list", { cwd: place.work, cursor: null }],
    ["session/prompt", { sessionId, prompt: prompt.slice(0, 1 + random.below(4)) }],
    ["session/prompt", { sessionId, prompt: prompt.slice(0, 1) }],
    ["session/cancel", { sessionId }],
    ["session/set_mode", { sessionId, modeId: random.pick(["plan", "build", "none"]) }],
    ["session/set_model", { sessionId, modelId: "m" }],
    ["session/set_config_option", { sessionId, configId: random.pick(["mode", "model", "thinking"]), value: "plan" }],
    ["session/close", { sessionId }],
    ["$/cancel_request", { requestId: random.below(20) }],
    ["fs/read_text_file", { sessionId, path: "/etc/passwd" }],
    // Few: each is an agent.
    ...random.chance(0.1) ? [["session/new", { cwd: place.work, mcpServers: random.chance(0.2) ? servers : [] }]] : [],
  ]);
}

// Requests of a client of MCP, as they would be right.
function mcpMessage(state) {
  const session_id = state.session ?? "nobody";
  const call = (name, more) => ["tools/call", { name: `coding_agent${random.pick(["_", "."])}${name}`, arguments: { session_id, ...more }, _meta: { progressToken: random.pick([1, "a"]) } }];
  const start = { agent_type: "acp", command: [program, "fake-agent"], working_dir: place.work, wait: random.chance(0.5), initial_prompt: random.pick(scripts), permission_mode: "ask" };
  return random.pick([
    ["initialize", { protocolVersion: "2025-11-25", capabilities: { sampling: {} }, clientInfo: { name: "fuzz", version: "1" } }],
    ["server/discover", {}], ["ping", {}], ["tools/list", { cursor: null }], ["resources/list", {}], ["resources/templates/list", {}],
    ["resources/read", { uri: random.pick(["agent-proxy://sessions", `agent-proxy://sessions/${session_id}`, `agent-proxy://sessions/${session_id}/transcript`, "file:///etc/passwd"]) }],
    ["resources/subscribe", { uri: "agent-proxy://sessions" }], ["prompts/list", {}], ["logging/setLevel", { level: "debug" }], ["completion/complete", { ref: {}, argument: {} }],
    ["notifications/cancelled", { requestId: random.below(20), reason: "no more" }], ["notifications/initialized", {}], ["notifications/progress", { progressToken: 1, progress: 2 }],
    call("send_message", { message: random.pick(scripts), wait: random.chance(0.7), timeout_seconds: random.pick([0, 1, 600]) }),
    call("wait_for_turn", { from: random.below(30), turn: 1, timeout_seconds: 1 }),
    call("steer", { message: "say on" }), call("abort", { kill_processes: true }), call("get_status", {}),
    ["tools/call", { name: "coding_agent_list_sessions", arguments: { status: "idle", agent_type: "acp", limit: 10 } }],
    call("read_events", { from: random.below(10), limit: 10, types: "stream:*" }), call("suspend_session", {}), call("resume_session", {}),
    call("kill_session", { grace_ms: 0 }), call("list_processes", {}), call("kill_process", { pid: random.pick([0, 1, -1, process.pid]), tree: true, grace_ms: 0 }),
    call("list_permissions", {}), call("answer_permission", { permission_id: "permission-1", answer: random.pick(["allow", "deny", "cancelled"]) }),
    ["tools/call", { name: "coding_agent_list_agents", arguments: {} }],
    ...random.chance(0.1) ? [["tools/call", { name: "coding_agent_start_session", arguments: start }]] : [],
  ]);
}

// A message that is nearly right, and now and then a response that nobody waits for.
function garbage(state, make) {
  if (random.chance(0.08)) return { jsonrpc: "2.0", id: id(random, state.last), [random.pick(["result", "error"])]: random.pick([{}, null, { code: 1, message: "no" }, { outcome: { outcome: "selected", optionId: "allow" } }]) };
  const [method, params] = make(state);
  const message = { jsonrpc: "2.0", method, params };
  if (!method.startsWith("notifications/") || random.chance(0.1)) message.id = id(random, ++state.last);
  return message;
}

// A program that speaks lines, and the answers to requests that are right.
class LineClient {
  constructor(argv) {
    this.child = spawn(program, argv, { env: place.env, cwd: place.work, stdio: ["pipe", "pipe", "pipe"] });
    this.stderr = "";
    this.answers = new Map();
    this.session = undefined;
    this.last = 0;
    let rest = "";
    this.child.stderr.on("data", (text) => { this.stderr = (this.stderr + text).slice(-100_000); });
    this.child.stdin.on("error", () => {});
    this.child.stdout.on("data", (part) => {
      const lines = (rest + part).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const message = JSON.parse(line);
        counts.answers++;
        this.session = message.result?.sessionId ?? message.result?.structuredContent?.session_id ?? this.session;
        const waits = this.answers.get(message.id);
        if (waits && message.method === undefined) waits(message);
      }
    });
    this.ended = new Promise((resolve) => this.child.on("exit", (code, signal) => { this.isOver = true; resolve(code ?? signal); }));
  }

  write(bytes) {
    return new Promise((resolve) => this.isOver ? resolve() : this.child.stdin.write(bytes, resolve));
  }

  // A request that is right; undefined if the program has ended.
  async ask(method, params) {
    const id = `live-${counts.live++}`;
    const answer = new Promise((resolve) => this.answers.set(id, resolve));
    await this.write(`${JSON.stringify({ jsonrpc: "2.0", id, method, params })}\n`);
    const answered = await soon(`the answer to ${method}`, Promise.race([answer, this.ended.then(() => undefined)]));
    this.answers.delete(id);
    return answered;
  }
}

const initialize = { protocolVersion: "2025-11-25", capabilities: {}, clientInfo: { name: "live", version: "1" } };

async function begin(client) {
  if (face === "acp") {
    await client.ask("initialize", { protocolVersion: 1, clientCapabilities: {} });
    await client.ask("session/new", { cwd: place.work, mcpServers: [] });
  } else {
    await client.ask("initialize", initialize);
    await client.write('{"jsonrpc":"2.0","method":"notifications/initialized"}\n');
    await client.ask("tools/call", { name: "coding_agent_start_session", arguments: { agent_type: "acp", command: [program, "fake-agent"] } });
  }
  return client.session;
}

// A connection of one program, from its start to its end.
async function lineConnection() {
  const client = new LineClient(face === "acp" ? ["acp", ...agent] : ["mcp"]);
  const isBegun = random.chance(0.8);
  if (isBegun) assert.ok(await begin(client), `no session: ${client.stderr}`);
  const odds = random.pick([0, 0.01, 0.05, 0.2]);
  const [make, live] = face === "acp" ? [acpMessage, "session/list"] : [mcpMessage, "ping"];
  for (let count = random.below(300); count > 0 && !client.isOver; count--) {
    const bytes = mangle(random, corrupt(random, garbage(client, make), odds));
    counts.messages++;
    const cut = random.below(bytes.length);
    await client.write(bytes.subarray(0, cut));
    await client.write(bytes.subarray(cut));
    if (isBegun && random.chance(0.03) && !client.isOver) {
      // Half a line is ended first.
      await client.write("\n");
      const answer = await client.ask(live, {});
      // Where garbage has changed the protocol's version, MCP has no ping: an error is an answer.
      assert.ok(answer?.result !== undefined || (face === "mcp" && answer?.error !== undefined), `${live}: ${JSON.stringify(answer)} ${client.stderr}`);
    }
  }
  if (random.chance(0.3)) await client.write('{"jsonrpc":"2.0","id":');
  if (random.chance(0.2)) client.child.kill("SIGKILL");
  else client.child.stdin.end();
  const status = await soon("the end of the program", client.ended);
  assert.doesNotMatch(client.stderr, /panicked/, client.stderr);
  assert.ok(["SIGKILL", 0].includes(status) || (!isBegun && status > 0), `ended with ${status}: ${client.stderr}`);
}

// A request over TCP, as bytes; what comes back within a moment.
function raw(port, bytes) {
  return soon("the end of a connection", new Promise((resolve) => {
    const socket = net.connect(port, "127.0.0.1");
    let text = "";
    socket.on("data", (part) => { text = (text + part).slice(0, 10_000); if (random.chance(0.5)) socket.end(); });
    socket.on("error", () => {});
    socket.on("close", () => resolve(text));
    // A stream of events, or a body that never comes, is left.
    socket.setTimeout(200, () => socket.destroy());
    socket.write(bytes);
  }));
}

const HEADER_GARBAGE = ["", "0", "-1", "*/*", "text/event-stream;q=9", "x".repeat(5000), "é", "\u0001", "a, b; c=\"", "99999999999999999999", "2025-11-25", "2026-07-28", "2099-01-01", "application/json; charset=utf-16", "multipart/form-data", "null", "http://evil.example", "gzip, br"];

function httpRequest(state, token) {
  const method = random.pick(["POST", "POST", "POST", "POST", "GET", "DELETE", "PUT", "OPTIONS", "PATCH", "BREW"]);
  let body = method === "GET" || method === "DELETE" ? Buffer.alloc(0) : mangle(random, corrupt(random, garbage(state, mcpMessage), state.odds));
  const headers = new Map([
    ["Host", "127.0.0.1"], ["Authorization", `Bearer ${token}`], ["Content-Type", "application/json"], ["Accept", "application/json, text/event-stream"],
    ["Content-Length", `${body.length}`],
  ]);
  if (state.http) headers.set("Mcp-Session-Id", state.http);
  if (random.chance(0.5)) headers.set("Mcp-Protocol-Version", random.pick(["2025-11-25", "2026-07-28"]));
  let text = `${method} /mcp${random.pick(["", "", "", "?a=b", "?%00"])} HTTP/1.1\r\n`;
  for (const [name, value] of headers) {
    if (random.chance(state.odds / 2)) continue;
    const isSecret = name === "Authorization" && !random.chance(0.02);
    text += `${name}: ${random.chance(state.odds) && !isSecret ? random.pick(HEADER_GARBAGE) : value}\r\n`;
    if (random.chance(state.odds / 4)) text += `${name}: ${random.pick(HEADER_GARBAGE)}\r\n`;
  }
  for (const name of ["Mcp-Session-Id", "Mcp-Protocol-Version", "Mcp-Method", "Mcp-Name", "Last-Event-Id", "Origin", "Transfer-Encoding", "Content-Encoding", "Expect", "Upgrade", "Connection", "X-Forwarded-For"])
    if (random.chance(state.odds / 2)) text += `${name}: ${random.pick([...HEADER_GARBAGE, "chunked", "100-continue", "websocket", "close"])}\r\n`;
  return Buffer.concat([Buffer.from(`${text}\r\n`, "latin1"), body]);
}

// A request that is right, at /mcp over TCP; its answer's headers and text.
function post(port, token, session, message) {
  return soon(`the answer to ${message.method}`, new Promise((resolve, reject) => {
    const headers = { authorization: `Bearer ${token}`, "content-type": "application/json", accept: "application/json, text/event-stream" };
    if (session) headers["mcp-session-id"] = session;
    const request = http.request({ host: "127.0.0.1", port, path: "/mcp", method: "POST", headers, agent: false }, (answer) => {
      let text = "";
      answer.on("data", (part) => { text += part; });
      answer.on("end", () => resolve({ status: answer.statusCode, headers: answer.headers, text }));
    });
    request.on("error", reject);
    request.end(JSON.stringify(message));
  }));
}

async function httpConnection({ port, token }) {
  const begun = await post(port, token, undefined, { jsonrpc: "2.0", id: 1, method: "initialize", params: initialize });
  assert.equal(begun.status, 200, begun.text);
  const state = { http: begun.headers["mcp-session-id"], last: 1, odds: random.pick([0, 0.02, 0.1, 0.3]) };
  await post(port, token, state.http, { jsonrpc: "2.0", method: "notifications/initialized" });
  const started = await post(port, token, state.http, { jsonrpc: "2.0", id: 2, method: "tools/call", params: { name: "coding_agent_start_session", arguments: { agent_type: "acp", command: [program, "fake-agent"] } } });
  state.session = /"session_id":"([^"]+)"/.exec(started.text)?.[1];
  assert.ok(state.session, started.text);
  const own = state.http;
  const open = [];
  for (let count = random.below(200); count > 0; count--) {
    counts.messages++;
    open.push(raw(port, httpRequest(state, token)).then((text) => { if (text !== "") counts.answers++; assert.ok(!/^HTTP\/1.1 5\d\d /.test(text) || EXPECTED_5XX.test(text), text); }));
    if (open.length >= 8) await Promise.all(open.splice(0));
    if (random.chance(0.03)) {
      counts.live++;
      const live = await post(port, token, undefined, { jsonrpc: "2.0", id: 1, method: "initialize", params: initialize });
      assert.equal(live.status, 200, live.text);
      await raw(port, `DELETE /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAuthorization: Bearer ${token}\r\nMcp-Session-Id: ${live.headers["mcp-session-id"]}\r\n\r\n`);
    }
  }
  await Promise.all(open);
  // Some clients never say that they leave.
  if (random.chance(0.9)) await raw(port, `DELETE /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAuthorization: Bearer ${token}\r\nMcp-Session-Id: ${own}\r\n\r\n`);
}

assert.ok(["acp", "mcp", "mcp-http"].includes(face) && minutes > 0, "usage: faces.mjs acp|mcp|mcp-http [--minutes N] [--seed S]");
console.log(`fuzz ${face}: seed ${seed}, ${minutes} min`);
const log = path.join(place.folder, "daemon.log");
run(place, "serve", "--detach", "--state-dir", path.join(place.folder, "state"), "--log-file", log, "--listen", "127.0.0.1:0", "--max-request-rate", "100000");
let failure;
try {
  const { pid, daemon } = JSON.parse(run(place, "status", "--json"));
  const to = { port: Number(new URL(daemon.addresses[0]).port), token: readFileSync(path.join(place.folder, "config/token"), "utf8").trim() };
  const begin = Date.now();
  const end = begin + minutes * 60_000;
  // Memory is compared once everything that is made once has been made.
  const warm = begin + Math.min(minutes * 60_000 / 5, 180_000);
  let before;
  let told = begin;
  while (Date.now() < end) {
    counts.connections++;
    await (face === "mcp-http" ? httpConnection(to) : lineConnection());
    await forgetSessions();
    if (before === undefined && Date.now() > warm) before = memoryMib(pid);
    if (Date.now() - told > 60_000) {
      told = Date.now();
      console.log(`fuzz ${face}: ${Math.round((told - begin) / 60_000)} min, ${JSON.stringify(counts)}, daemon ${memoryMib(pid).toFixed(1)} MiB`);
    }
  }
  await untilNone(place);
  const after = memoryMib(pid);
  console.log(`fuzz ${face}: seed ${seed}, ${minutes} min, ${JSON.stringify(counts)}, daemon ${before.toFixed(1)} MiB, then ${after.toFixed(1)} MiB`);
  assert.ok(after - before < MOST_GROWN_MIB, `the daemon has grown by ${(after - before).toFixed(1)} MiB`);
  assert.ok(counts.live > 0 && counts.answers > 0 && counts.messages > 0, "nothing was asked");
} catch (error) {
  failure = error;
}
run(place, "stop", "--now");
await waitFor("the end of all processes", () => processesOf(place).length === 0);
const said = readFileSync(log, "utf8");
if (failure || said.includes("panicked")) {
  console.log(`fuzz ${face}: FAILED with seed ${seed}; the daemon's log is ${log}`);
  throw failure ?? new Error(`the daemon panicked: ${said.slice(said.indexOf("panicked") - 200).slice(0, 2000)}`);
}
rmSync(place.folder, { recursive: true });
