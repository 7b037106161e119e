// Output that wants to be more than text, in every place where text of an agent or a user shows: it stays text.
import { test } from "node:test";
import assert from "node:assert/strict";
import { mkdirSync, writeFileSync } from "node:fs";
import path from "node:path";
import { setUp, checkQuiet } from "./lib.mjs";

const IMAGE = `<img src=x onerror="ran.push('image')">`;
const SCRIPT = `<script>ran.push('script')</script>`;
const LINK = `[click](javascript:ran.push('link'))`;
const DATA = `<a href="data:text/html,<script>ran.push(1)</script>">data</a> [d](data:text/html;base64,PHNjcmlwdD4=) [v](vbscript:x)`;
const ANSI = `\u001b[31mred\u001b[0m\u001b]0;title\u0007\u001b]8;;javascript:ran.push('osc')\u0007osc\u001b]8;;\u0007\u001b[2J\u009b31m`;
const HIDDEN = `a\u202egnp.exe\u202c b\u200bc\u2066d\u2069e\ufefff \u{e0041}g`;
const RTL = `שלום עולם`;
/** All of it in one line. */
const ALL = `${IMAGE}${SCRIPT}${LINK}${DATA}${ANSI}${HIDDEN}${RTL}`;
/** Without control characters, where a configuration refuses them. */
const PRINTABLE = `${IMAGE}${SCRIPT}${LINK}${HIDDEN}${RTL}`;

const { daemon, open: openBy } = await setUp();
const open = (hash, options) => openBy({ hash, ...options });

/** A message of the agent's protocol, as a line of a prompt for the fake agent. */
const update = (session, fields) => `raw ${JSON.stringify({ jsonrpc: "2.0", method: "session/update", params: { sessionId: session, update: fields } })}`;
const FAKE = "fake-session";

/** Fails if anything of the hostile text is more than text. */
async function inert(page, where) {
  const found = await page.evaluate((where) => {
    const root = where ? document.querySelector(where) : document.body;
    const text = root.textContent + [...root.querySelectorAll("*")].flatMap((node) => [...node.attributes].map((attribute) => attribute.value)).join(" ") + document.title;
    return {
      there: text.includes("ran.push('image')") || text.includes("gnp.exe") || text.includes("onerror"),
      images: [...root.querySelectorAll("img")].filter((image) => !/^(blob:|data:image\/)/.test(image.getAttribute("src") ?? "")).length,
      scripts: root.querySelectorAll("script, iframe, object, embed, style, form[action], base, meta, svg script").length,
      links: [...root.querySelectorAll("[href], [src], [xlink\\:href]")].map((node) => node.href ?? node.src).filter((href) => !/^(https?:|mailto:|blob:|data:image)/.test(String(href))),
      handlers: [...root.querySelectorAll("*")].filter((node) => [...node.attributes].some((attribute) => /^on/i.test(attribute.name))).length,
      // eslint-disable-next-line no-control-regex
      hidden: [...text.matchAll(/[\u0000-\u0008\u000e-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]|[\u{e0000}-\u{e007f}]/gu)].map(([character]) => character.codePointAt(0).toString(16)),
    };
  }, where);
  assert.deepEqual({ ...found, there: true }, { there: true, images: 0, scripts: 0, links: [], handlers: 0, hidden: [] });
  assert.ok(found.there, "the text is shown");
  await checkQuiet(page, [/404/, /422/]);
}

/** Runs a prompt in a new session, and shows it. */
async function conversation(id, script, more = {}) {
  await daemon.session(id, more);
  await daemon.ask(id, script);
  const page = await open(`#/session/${id}`);
  await page.locator(".turn").first().waitFor();
  return page;
}

test("the list of sessions", async () => {
  await daemon.session("list", { userId: PRINTABLE, workspaceId: PRINTABLE, lifecycle: { title: PRINTABLE }, model: PRINTABLE }).catch(() => daemon.session("list", { lifecycle: { title: PRINTABLE }, userId: PRINTABLE }));
  const page = await open("#/");
  await page.locator("tr.session", { hasText: "onerror" }).waitFor();
  await inert(page, "table.sessions");
  await page.locator(".toolbar select").first().selectOption("user");
  await page.locator("tr.group").first().waitFor();
  await inert(page);
});

test("the head of a session, and the title of the window", async () => {
  await daemon.session("head", { userId: PRINTABLE, lifecycle: { title: PRINTABLE } });
  const page = await open("#/session/head");
  await page.locator("h1", { hasText: "onerror" }).waitFor();
  await inert(page);
  assert.ok((await page.title()).includes("img"), await page.title());
});

test("text of the answer", async () => {
  const page = await conversation("text", `say ${ALL}\nsay **${IMAGE}** \`${SCRIPT}\` # ${IMAGE}\nsay # ${IMAGE}\nsay - ${IMAGE}\nsay > ${SCRIPT}\nsay | ${IMAGE} | b |\nsay |---|---|\nsay | ${SCRIPT} | ${LINK} |`);
  await inert(page, ".chat-content");
  // Nothing of a hostile link can be clicked; a good one can.
  const good = await conversation("good", "say [fine](https://example.com/) https://example.org/a_b.");
  assert.deepEqual(await good.locator(".markdown a").evaluateAll((links) => links.map((link) => [link.href, link.rel, link.target])),
    [["https://example.com/", "noreferrer noopener", "_blank"], ["https://example.org/a_b", "noreferrer noopener", "_blank"]]);
});

test("code in the answer", async () => {
  const page = await conversation("code", `say \`\`\`html\nsay ${ALL}\nsay \`\`\`\nsay \`\`\`${IMAGE}\nsay "${IMAGE}" // ${SCRIPT}\nsay \`\`\``);
  await page.locator("figure.code").nth(1).waitFor();
  await inert(page, ".chat-content");
});

test("thinking", async () => {
  const page = await conversation("thinking", `think ${ALL}`);
  await page.locator("details.thinking summary").click();
  await page.locator("details.thinking .markdown").waitFor();
  await inert(page, ".thinking");
});

test("a prompt and its history", async () => {
  const page = await conversation("prompt", `say x ${ALL}`);
  await inert(page, ".prompt");
  await page.locator("#prompt").press("ArrowUp");
  await inert(page);
});

test("a tool: name, title, input, output", async () => {
  const page = await conversation("tool", [
    update(FAKE, { sessionUpdate: "tool_call", toolCallId: "h1", title: ALL, kind: "execute", status: "in_progress", rawInput: { command: ALL, other: ALL } }),
    update(FAKE, { sessionUpdate: "tool_call_update", toolCallId: "h1", status: "failed", content: [{ type: "content", content: { type: "text", text: ALL } }] }),
    "say end",
  ].join("\n"));
  await page.locator("details.tool[open] .tool-body").waitFor();
  await inert(page, ".tool");
});

/** A session whose events are these, whatever the server of this release sends. */
async function conversationOf(id, events) {
  await daemon.session(id);
  const page = await open(null);
  const number = (at) => String(at + 1).padStart(20, "0");
  const body = events.map(([type, payload], at) => `id: ${at + 1}\ndata: ${JSON.stringify({ offset: number(at), type, version: 1, createdAt: new Date().toISOString(), eventStreamId: id, payload, metadata: { turn: 1, by: ALL } })}\n\n`).join("");
  await page.route(new RegExp(`/v1/sessions/${id}/events`), (route) => route.fulfill({ status: 200, contentType: "text/event-stream", body: route.request().headers()["last-event-id"] ? "" : body }));
  await page.goto(new URL(`#/session/${id}`, daemon.url).href);
  await page.locator(".turn").first().waitFor();
  return page;
}
const BEGUN = ["turn:started", { prompt: ALL, attachments: [ALL] }];
const call = (id, more = {}) => ["stream:tool_start", { id, name: ALL, title: ALL, kind: "edit", input: { path: ALL }, status: "inProgress", parent: null, ...more }];

test("a change of a file", async () => {
  const page = await conversationOf("diff", [BEGUN, call("c"), ["stream:diff", { toolCallId: "c", path: `/tmp/${ALL}`, change: "moved", movedTo: ALL, hunks: [{ oldText: `${ALL}\nsame`, newText: `${ALL}2\nsame`, oldLine: 1, newLine: 1 }], omittedBytes: 3, parent: null }]]);
  await page.locator(".diff").waitFor();
  await inert(page, ".diff");
  await inert(page, ".chat-content");
});

test("changes in a workspace: names of files, and what is in them", async () => {
  const tree = path.join(daemon.work, "tree");
  mkdirSync(tree);
  await daemon.call("POST", "v1/sessions", { sessionId: "changes", agent: "command", command: ["cat"], cwd: tree, workspace: "copy" });
  const workspace = await daemon.call("GET", "v1/sessions/changes/workspace");
  writeFileSync(path.join(workspace.path, `${IMAGE}${HIDDEN}${RTL}`), `${ALL}\n`);
  const page = await open("#/session/changes/changes");
  await page.locator(".changes .plus", { hasText: "onerror" }).waitFor();
  await page.locator(".changes li", { hasText: "onerror" }).waitFor();
  await inert(page, ".changes");
});

test("a sub-agent", async () => {
  const page = await conversationOf("sub", [BEGUN, call("c"), ["stream:subagent_text", { parent: "c", text: ALL }], ["stream:subagent_thinking", { parent: "c", text: ALL }], call("d", { parent: "c" }), ["stream:tool_end", { id: "d", status: "failed", output: ALL }]]);
  await page.locator(".nested .tool").waitFor();
  await inert(page, ".nested");
});

test("errors, notes, settings, a title, and who caused them", async () => {
  const by = { caller: ALL, user: ALL, role: "operate", route: "/v1/sessions/{id}/abort", outcome: "done" };
  const page = await conversationOf("notes", [BEGUN, ["stream:error", { code: ALL, message: ALL, retryable: true, attempt: 2, delayMs: 1000 }], ["session:title", { title: ALL, by: "agent" }], ["session:model", { model: ALL, by: "agent" }],
    ["session:mode", { mode: ALL, by: "agent" }], ["session:thinking", { level: ALL, by: "agent" }], ["session:status", { status: "warning", detail: ALL }], ["session:degraded", { reason: ALL }], ["action:failed", { action: ALL, error: ALL }],
    ["usage:limited", { limit: ALL, message: ALL, resetsAt: ALL, waits: true }], ["timeout:fired", { clock: ALL, afterMs: 1, action: "warn", lastWords: ALL }], ["limit:exceeded", { limit: ALL, value: 1, measured: 2, form: ALL, action: "warn" }],
    ["budget:exceeded", { budget: ALL, value: 1, measured: 2, action: ALL }], ["permission:bypassed", { title: ALL, tool: ALL }], ["audit:call", by], ["permission:requested", { id: "p", title: ALL, tool: ALL, kind: ALL, command: ALL, paths: [ALL], input: { a: ALL }, options: [{ id: "o", name: ALL, kind: "allowOnce" }] }],
    ["permission:resolved", { id: "p", option: "o", by: { user: { name: ALL } } }], ["stream:complete", { stopReason: { other: ALL }, usage: null }], ["session:ended", { reason: { failed: ALL }, receipt: { sessionId: "x", cause: ALL, processes: [{ id: { pid: 1, startTime: 1 }, command: ALL, outcome: "gone", reapedBy: ALL }], layers: [ALL], rounds: 1, durationUs: 1, unattributed: [], survivors: [], omitted: 0, proof: "noChildren", cgroupEmpty: null, unmarked: null } }]]);
  await page.locator(".failure").waitFor();
  await inert(page, ".chat-content");
  await page.getByRole("button", { name: "Receipt" }).click();
  await page.locator(".receipt").waitFor();
  await inert(page);
});

test("slash commands", async () => {
  const page = await conversationOf("commands", [BEGUN, ["session:commands", { commands: [{ name: `x${ALL.replaceAll(" ", "")}`, description: ALL, argumentHint: ALL }] }], ["stream:complete", { stopReason: "endTurn", usage: null }]]);
  await page.locator("#prompt").fill("/x");
  await page.locator(".commands li").waitFor();
  await inert(page, ".commands");
});

test("a plan", async () => {
  const page = await conversation("plan", [update(FAKE, { sessionUpdate: "plan", entries: [{ content: ALL, status: "pending", priority: "high" }] }), "say end"].join("\n"));
  await page.locator(".plan").waitFor();
  await inert(page, ".plan");
});

test("a permission request: card, inbox, and its place in the conversation", async () => {
  await daemon.session("ask", { lifecycle: { title: PRINTABLE } });
  await daemon.prompt("ask", `ask ${ALL}`);
  const page = await open("#/session/ask");
  await page.locator(".open-cards .permission").waitFor();
  await inert(page, ".open-cards");
  // The card may come with the list, before the event does.
  await page.locator(".asked").waitFor();
  await inert(page, ".asked");
  await page.keyboard.press("p");
  await page.locator(".inbox .permission").first().waitFor();
  await inert(page, ".inbox");
  await daemon.call("POST", "v1/sessions/ask/abort", {});
});

test("errors and notes", async () => {
  const page = await conversation("errors", "say before");
  await daemon.call("POST", "v1/sessions/errors/events", { type: "agent:action:operation:called", payload: { x: ALL } }).catch(() => null);
  await daemon.call("POST", "v1/sessions/errors/kill", {});
  await page.getByText("Ended:").waitFor();
  await checkQuiet(page, [/404/]);
  // The agent's last words are in the reason of its end.
  await daemon.session("dies");
  await daemon.ask("dies", `stderr ${ALL}\nexit 3`).catch(() => null);
  const dead = await open("#/session/dies");
  await dead.getByText("Ended:").waitFor();
  await checkQuiet(dead, [/404/]);
});

test("a problem of the server, in a toast and in the form", async () => {
  const page = await open("#/?new");
  const form = page.locator("form.start");
  await form.locator("select[name=agent]").selectOption("acp");
  await form.locator("input[name=command]").fill("true");
  await form.locator("input[name=cwd]").fill(`/none/${PRINTABLE}`);
  await form.getByRole("button", { name: "Start" }).click();
  await form.getByRole("alert").waitFor();
  await inert(page, "form.start");
});

test("a process, its timeline, its end, a receipt", async () => {
  await daemon.session("process");
  const command = `${IMAGE}${SCRIPT}${HIDDEN}`.replaceAll("'", "");
  await daemon.ask("process", `spawn exec sleep 1000 || : '${command}'\nspawn sleep 1000; : '${command}'`);
  const page = await open("#/session/process/processes");
  await page.locator("table.tree tr", { hasText: "onerror" }).first().waitFor();
  await page.locator(".timeline li").first().waitFor();
  await inert(page);
  await page.getByRole("button", { name: "Kill the session" }).click();
  await page.locator("dialog").getByRole("button", { name: "Kill the session" }).click();
  await page.locator("dialog .receipt").getByText("onerror").first().waitFor();
  await inert(page, "dialog");
  await page.locator("dialog").getByRole("button", { name: "Close", exact: true }).last().click();
  await page.getByRole("button", { name: "Receipt" }).click();
  await inert(page);
});

test("the raw events, and one as JSON", async () => {
  await daemon.session("events");
  await daemon.call("POST", "v1/sessions/events/events", { type: "hostile:event", payload: { text: ALL, [ALL]: ALL } });
  await daemon.ask("events", `say ${ALL}\nstderr ${ALL}`);
  const page = await open("#/session/events/events");
  await page.getByLabel("raw lines").check();
  await page.locator("table.rows tr", { hasText: "hostile:event" }).getByRole("link").click();
  await page.locator(".one pre").waitFor();
  await inert(page);
});

test("a terminal: frames paint, and do nothing else", async () => {
  await daemon.session("screen");
  const page = await open(null);
  const typed = [];
  await page.routeWebSocket(/\/v1\/sessions\/screen\/terminal/, (socket) => {
    socket.onMessage((message) => typed.push(String(message)));
    socket.send(JSON.stringify({ type: "attached", rows: 24, columns: 80, types: true }));
    socket.send(Buffer.from(`\x1b[H\x1b[2J\x1b[31mred\x1b[0m \x1b[38;2;10;200;100mtrue\x1b[0m ${IMAGE} ${SCRIPT}\r\n\x1b]8;;javascript:ran.push('osc')\x07evil\x1b]8;;\x07 javascript:ran.push('web')\r\n\x1b]0;title\x07\x1b]52;c;aGk=\x07\x1b[6n\x1b[c${HIDDEN}\r\nend`));
    socket.send(JSON.stringify({ type: "clipboard", text: ALL }));
    socket.send(JSON.stringify({ type: "refused", problem: { detail: ALL } }));
  });
  await page.goto(new URL("#/session/screen/terminal", daemon.url).href);
  await page.getByRole("button", { name: "The agent's screen" }).click();
  const rows = page.locator(".xterm-rows");
  await rows.getByText("end", { exact: true }).waitFor();
  // A row is drawn anew as its cursor moves.
  await page.waitForFunction(() => [...document.querySelectorAll(".xterm-rows span")].some((node) => node.textContent.startsWith("true") && getComputedStyle(node).color === "rgb(10, 200, 100)"));
  const { x, y, width, height } = await rows.getByText("evil").boundingBox();
  await page.mouse.move(x + width / 2, y + height / 2);
  await page.mouse.click(x + width / 2, y + height / 2);
  assert.equal(page.context().pages().length, 1, "no window opens");
  assert.deepEqual(await page.evaluate(() => [document.querySelectorAll(".terminal-view img, .terminal-view script, .terminal-view a[href]").length, document.title.includes("title")]), [0, false]);
  assert.ok(!typed.some((text) => text.includes("aGk")), "nobody reads or writes the clipboard by a sequence");
  await checkQuiet(page, [/404/]);
});

test("a picture of the answer is a picture, and one of elsewhere is not loaded", async () => {
  const png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
  const page = await conversation("pictures", `say ![own](data:image/png;base64,${png})\nsay ![other](https://example.com/x.png) ![svg](data:image/svg+xml;base64,AAAA)`);
  await page.locator("img.picture").waitFor();
  assert.equal(await page.locator(".chat-content img").count(), 1);
  await checkQuiet(page, [/404/]);
});

test("a picture as an event: its type and its data are what they say, or it is not shown", async () => {
  const image = (fields) => ["stream:image", { mimeType: "image/png", data: "iVBORw0KGgo=", bytes: 8, toolCallId: null, parent: null, ...fields }];
  const page = await conversationOf("images", [BEGUN, image({ mimeType: "image/svg+xml", data: Buffer.from(`<svg xmlns="http://www.w3.org/2000/svg">${SCRIPT}</svg>`).toString("base64") }),
    image({ mimeType: ALL }), image({ data: `x" onerror="ran.push('data')` }), image({ data: null, bytes: 5_000_000 }), call("c"), image({ mimeType: `image/png;${IMAGE}`, toolCallId: "c" }), ["network:refused", { host: ALL, port: 1, reason: ALL, process: null }]]);
  await page.getByText("was refused the host").waitFor();
  assert.equal(await page.locator(".chat-content img").count(), 0);
  assert.equal(await page.getByText("that is not shown").count(), 5);
  await inert(page, ".chat-content");
});

test("agents and the machine", async () => {
  const page = await open("#/machine");
  await page.getByText("Claude Code").first().waitFor();
  await checkQuiet(page, [/404/]);
});

test("an address that names something else", async () => {
  const page = await open(`#/session/${encodeURIComponent(ALL)}/${encodeURIComponent(IMAGE)}`);
  await page.locator(".session-view, .empty").first().waitFor();
  await page.waitForTimeout(500);
  assert.equal(await page.locator("#main img, #main script").count(), 0);
  await checkQuiet(page, [/40[04]/]);
});

test("a line of 5 MB, in text, in code and in a tool's output", async () => {
  await daemon.session("long");
  // Chunks of the answer without a line's end, so that it is one line of 5 MB.
  await daemon.ask("long", "flood 20 262144");
  const page = await open("#/session/long");
  await page.locator(".text-item").first().waitFor();
  // It is drawn in pieces, the page answers, and nothing is wider than the window.
  const started = Date.now();
  await page.locator("#prompt").fill("still there");
  assert.ok(Date.now() - started < 3000, `${Date.now() - started} ms to type`);
  const { nodes, wide } = await page.evaluate(() => ({ nodes: document.querySelectorAll("*").length, wide: document.documentElement.scrollWidth - innerWidth }));
  assert.ok(nodes < 10_000, `${nodes} nodes`);
  assert.ok(wide <= 0, `${wide} pixels too wide`);
  await daemon.ask("long", `run head -c 5000000 /dev/zero | tr '\\\\0' x`);
  await page.locator("details.tool").last().locator("summary").click();
  await page.locator(".labelled").last().waitFor();
  await checkQuiet(page, [/404/]);
});
