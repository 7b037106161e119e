// Servers between the browser and a daemon: one that adds the token, and one whose API is made up, for sizes that no machine has to have.
import http from "node:http";

const text = (number) => String(number).padStart(20, "0");

function listen(handler, upgrade) {
  const server = http.createServer(handler);
  if (upgrade) server.on("upgrade", upgrade);
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve({ url: `http://127.0.0.1:${server.address().port}/`, close: () => { server.closeAllConnections(); server.close(); } })));
}

/** Options of a request to the daemon, with its token. */
function onward(request, daemon) {
  const target = new URL(request.url, daemon.url);
  const headers = { ...request.headers, host: target.host, authorization: `Bearer ${daemon.token}` };
  delete headers.origin;
  delete headers.cookie;
  return { host: target.hostname, port: target.port, path: request.url, method: request.method, headers };
}

function passUpgrade(request, socket, head, daemon) {
  const call = http.request(onward(request, daemon));
  call.on("upgrade", (answer, other, first) => {
    socket.write(`HTTP/1.1 101 Switching Protocols\r\n${Object.entries(answer.headers).map(([name, value]) => `${name}: ${value}`).join("\r\n")}\r\n\r\n`);
    other.write(head);
    socket.write(first);
    socket.pipe(other).pipe(socket);
    for (const end of [socket, other]) end.on("error", () => { socket.destroy(); other.destroy(); });
  });
  call.on("response", (answer) => socket.end(`HTTP/1.1 ${answer.statusCode} refused\r\n\r\n`));
  call.on("error", () => socket.destroy());
  call.end();
}

function pass(request, response, daemon) {
  const call = http.request(onward(request, daemon), (answer) => { response.writeHead(answer.statusCode, answer.headers); answer.pipe(response); });
  call.on("error", () => response.destroy());
  response.on("close", () => call.destroy());
  request.pipe(call);
}

/** Passes everything on with the daemon's token: a login, for tools that have none. */
export const withToken = (daemon) => listen((request, response) => pass(request, response, daemon), (request, socket, head) => passUpgrade(request, socket, head, daemon));

/** Serves the daemon's page, with sessions and events that are made up. Each list differs from the one before in every session. */
export async function madeUp(daemon, { sessions = 0, past = 0, perSecond = 0 } = {}) {
  let round = 0;
  const session = (number) => ({
    sessionId: `session-${text(number).slice(-4)}`, agent: ["claude-code", "codex", "acp"][number % 3], userId: ["ada", "bob", "eve", null][number % 4], workspaceId: null, cwd: `/home/user/project-${number % 40}`,
    profile: null, home: null, depth: 1, surface: "machine", startedAt: new Date(Date.now() - number * 61_000).toISOString(), model: "model-x", mode: null, thinking: null, title: `Task ${number}: do the thing`,
    nativeSessionId: `native-${number}`, nativeSessionFile: null, resumable: true, state: number % 3 === round % 3 ? { busy: { turn: round } } : "idle", status: "idle", handedOver: false, ending: false, openPermissions: [],
    archived: false, proxy: { pid: 1000 + number, startTime: 1 }, agentProcess: { pid: 2000 + number, startTime: 1 }, measures: { layers: ["baseline", "cgroup"], observer: "connector", limits: [], undumpable: true, landlock: true, ownCgroupsOnly: true, agentSandbox: null },
    turns: round, queued: [], lastOffset: text(round * 10 + number), heartbeat: new Date().toISOString(),
    metrics: { messages: round, toolCalls: round, failedToolCalls: 0, permissionRequests: 0, errors: 0, usage: { inputTokens: round * 1000 + number, outputTokens: round * 10, cacheReadTokens: null, cacheWriteTokens: null, costUsd: round / 100 }, events: round, eventBytes: round * 100, busyMs: round, silentMs: 0, missedPings: 0 },
    processUse: { processes: 2 + (round + number) % 5, cpuPercent: (round * 7 + number) % 100, rssBytes: (20 + ((round + number) % 50)) << 20 },
  });
  const event = (offset, type, payload, turn = null) => `id: ${offset}\ndata: ${JSON.stringify({ offset: text(offset), type, version: 1, createdAt: new Date().toISOString(), eventStreamId: "big", payload, metadata: turn ? { turn } : {} })}\n\n`;
  const WORDS = ["The", "quick", "**brown**", "fox", "jumps", "over", "`the`", "lazy", "dog.\n", "- item\n", "\n\n", "and [so](https://example.com) on. "];
  /** Events of the past: turns of 100 events, with tools, plans and text. */
  const old = () => {
    const out = [];
    for (let offset = 1, turn = 0; offset <= past; offset++) {
      const at = offset % 100;
      if (at === 1) out.push(event(offset, "turn:started", { prompt: `prompt ${++turn}`, attachments: [] }, turn));
      else if (at === 99) out.push(event(offset, "stream:complete", { stopReason: "endTurn", usage: null }, turn));
      else if (at % 20 === 5) out.push(event(offset, "stream:tool_start", { id: `call-${turn}-${Math.floor(at / 20)}`, name: "Bash", title: "cargo test", kind: "execute", input: { command: "cargo test" }, status: "pending", parent: null }, turn));
      else if (at % 20 === 10) out.push(event(offset, "stream:tool_end", { id: `call-${turn}-${Math.floor(at / 20)}`, status: "completed", output: "ok\n".repeat(50) }, turn));
      else out.push(event(offset, "stream:text", { text: `${WORDS[offset % WORDS.length]} ` }, turn));
    }
    return out.join("");
  };
  const server = await listen((request, response) => {
    const url = new URL(request.url, "http://x");
    if (!url.pathname.startsWith("/v1/")) { pass(request, response, daemon); return; }
    const json = (value) => { response.writeHead(200, { "content-type": "application/json" }); response.end(JSON.stringify(value)); };
    if (url.pathname === "/v1/sessions") {
      round++;
      json(Array.from({ length: sessions }, (_, number) => session(number)).concat(past ? [{ ...session(sessions + 1), sessionId: "big", state: { busy: { turn: 9 } } }] : []));
    } else if (url.pathname.endsWith("/events")) {
      response.writeHead(200, { "content-type": "text/event-stream" });
      response.flushHeaders();
      if (url.pathname === "/v1/events") {
        // Each session changes twice a second.
        const timer = setInterval(() => response.write(event(++round, "session:busy", {})), 500);
        response.on("close", () => clearInterval(timer));
        return;
      }
      let offset = past;
      response.write(old());
      response.write(event(++offset, "turn:started", { prompt: "now", attachments: [] }, past + 1));
      const begun = Date.now();
      let sent = 0;
      const timer = setInterval(() => {
        let out = "";
        for (const due = ((Date.now() - begun) / 1000) * perSecond; sent < due; sent++) {
          out += event(++offset, "stream:text", { text: `${WORDS[offset % WORDS.length]} ` }, past + 1);
          if (sent % 2000 === 1999) out += event(++offset, "stream:complete", { stopReason: "endTurn", usage: null }, past + 1) + event(++offset, "turn:started", { prompt: "more", attachments: [] }, past + 1);
        }
        if (out) response.write(out);
      }, 5);
      response.on("close", () => clearInterval(timer));
    } else if (url.pathname === "/v1/records" || url.pathname.endsWith("/processes")) json([]);
    else if (url.pathname === "/v1/whoami") json({ name: "test", role: "admin", user: null });
    else if (url.pathname === "/v1/health") json({ version: "0", pid: 1, sessions, waiting: 0, damaged: [], degraded: [] });
    else { response.writeHead(404, { "content-type": "application/problem+json" }); response.end("{}"); }
  });
  return server;
}
