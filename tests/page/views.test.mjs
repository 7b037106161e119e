// What each view tells: the agent's own screen and its visits, groups, the form, kills as they happen, the timeline, notifications, keys.
import { test } from "node:test";
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { setUp, checkQuiet, program } from "./lib.mjs";

/** An agent with a screen of its own, on which its conversation goes on. */
const AGENTS = `
[[agents]]
id = "shown"
protocol = "acp"
cmd = ["${program}", "fake-agent", "--store", "chats", "--modes"]
terminal_cmd = ["/bin/sh"]
session_config = { native_session_resume = true, attach_command = ["/bin/sh", "-c", "echo own screen; read -r line; echo got $line", "{id}"] }
`;

const { daemon, open } = await setUp({ agents: AGENTS });
const terminal = (id, script) => daemon.call("POST", "v1/sessions", { sessionId: id, agent: "command", command: ["sh", "-c", script], cwd: daemon.work, terminal: {} });

test("what happens on the agent's own screen is marked, and stays apart from turns", async () => {
  await daemon.session("marked");
  const page = await open({ hash: null });
  const screen = { surface: "terminal" };
  const events = [
    ["turn:started", { prompt: "by the protocol", attachments: [] }, { turn: 1 }],
    ["terminal:prompted", { text: "typed on the screen" }, screen],
    ["stream:text", { text: "of the turn" }, { turn: 1 }],
    ["stream:text", { text: "of the screen" }, screen],
    ["stream:tool_start", { id: "c", name: "Bash", title: "ls", kind: "execute", input: { command: "ls" }, status: "pending", parent: null }, screen],
    ["stream:tool_end", { id: "c", status: "completed", output: "a file" }, screen],
    ["stream:complete", { stopReason: "endTurn", usage: null }, screen],
    ["stream:text", { text: " and its end" }, { turn: 1 }],
    ["stream:complete", { stopReason: "endTurn", usage: null }, { turn: 1 }],
  ];
  const number = (at) => String(at + 1).padStart(20, "0");
  const body = events.map(([type, payload, metadata], at) => `id: ${at + 1}\ndata: ${JSON.stringify({ offset: number(at), type, version: 1, createdAt: new Date().toISOString(), eventStreamId: "marked", payload, metadata })}\n\n`).join("");
  await page.route(/\/v1\/sessions\/marked\/events/, (route) => route.fulfill({ status: 200, contentType: "text/event-stream", body: route.request().headers()["last-event-id"] ? "" : body }));
  await page.goto(new URL("#/session/marked", daemon.url).href);
  const onScreen = page.getByRole("article", { name: "On the agent's screen" });
  await onScreen.getByText("of the screen", { exact: true }).waitFor();
  await onScreen.locator(".prompt .on-screen").getByText("terminal").waitFor();
  await onScreen.locator("details.tool").waitFor();
  const turn = page.getByRole("article", { name: "Turn 1" });
  assert.equal(await page.locator("article.turn").count(), 2, "no turn is begun twice");
  assert.equal(await turn.locator(".on-screen").count(), 0);
  // One text, though that of the screen came between.
  assert.equal((await turn.locator(".text-item").innerText()).replace(/Copy\s*/, "").trim(), "of the turn and its end");
  await page.getByRole("link", { name: "Events" }).click();
  const row = page.locator("table.rows tr", { hasText: "of the screen" });
  await row.locator(".on-screen").waitFor();
  assert.equal(await page.locator("table.rows tr", { hasText: "of the turn" }).locator(".on-screen").count(), 0);
  await checkQuiet(page, [/404/]);
});

test("the status of the agent's own screen, in the list and above the session", async () => {
  await terminal("status", "printf '\\033]7501;state=idle\\033\\\\'; read -r line; printf '\\033]7501;state=blocked:kind=permission:msg=YXNrcw==\\007'; sleep 1000");
  const list = await open();
  const row = list.locator("tr.session", { hasText: "status" });
  await row.locator(".screen-status").getByText("idle").waitFor();
  const page = await open({ hash: "#/session/status" });
  await page.locator(".session-head .screen-status").getByText("idle").waitFor();
  await daemon.call("POST", "v1/sessions/status/prompt", { text: "go", mode: "queue" });
  await page.locator(".session-head .screen-status").getByText("blocked").waitFor();
  await row.locator(".screen-status").getByText("blocked").waitFor();
  for (const each of [list, page]) await checkQuiet(each, [/404/]);
});

test("a visit of the agent's own screen: who is there, watch, take back", async () => {
  await daemon.call("POST", "v1/sessions", { sessionId: "visited", agent: "shown", cwd: daemon.work, home: "own" });
  await daemon.ask("visited", "say before the visit");
  const one = await open({ hash: "#/session/visited/terminal" });
  await one.getByRole("button", { name: "Visit" }).click();
  await one.locator(".xterm-rows").getByText("own screen").waitFor();
  const other = await open({ hash: "#/session/visited" });
  const banner = other.locator(".strip", { hasText: "has opened the agent's own screen" });
  await banner.getByText(/One person is at it/).waitFor();
  await banner.getByRole("link", { name: "Watch" }).click();
  await other.getByText("You watch").waitFor();
  await other.locator(".xterm-rows").getByText("own screen").waitFor();
  await banner.getByText(/2 people are at it/).waitFor();
  await banner.getByRole("button", { name: "Take back" }).click();
  await banner.waitFor({ state: "detached" });
  await other.getByRole("link", { name: "Conversation" }).click();
  await other.locator("#prompt").fill("say after the visit");
  await other.locator("#prompt").press("Enter");
  await other.getByText("after the visit", { exact: true }).last().waitFor();
  await checkQuiet(other, [/404/]);
});

test("a terminal whose connection breaks off connects again", async () => {
  await terminal("again", "echo shown; exec cat");
  const page = await open({ hash: null });
  let connections = 0;
  await page.routeWebSocket(/\/v1\/sessions\/again\/terminal/, (socket) => {
    connections++;
    if (connections === 1) {
      const server = socket.connectToServer();
      server.onMessage((message) => {
        socket.send(message);
        if (typeof message === "string" && message.includes("attached")) setTimeout(() => { socket.close(); server.close(); }, 50);
      });
    } else if (connections === 2) socket.close(); else socket.connectToServer();
  });
  await page.goto(new URL("#/session/again/terminal", daemon.url).href);
  await page.getByText("The connection broke off; trying again…").waitFor();
  await page.getByText("You have the keyboard").waitFor();
  assert.equal(connections, 3, "one that is refused is no reason to give up");
  await page.locator(".xterm-rows").click({ force: true });
  await page.keyboard.type("typed again\n");
  await page.locator(".xterm-rows").getByText("typed again").first().waitFor();
});

test("a terminal connects where the list of sessions comes after its view", async () => {
  await terminal("late", "echo shown late; exec cat");
  const page = await open({ hash: null });
  let answer;
  const answered = new Promise((resolve) => { answer = resolve; });
  await page.route(/\/v1\/sessions(\?|$)/, async (route) => { await answered; await route.continue(); });
  await page.goto(new URL("#/session/late/terminal", daemon.url).href);
  await page.locator(".terminal-view").waitFor();
  answer();
  await page.locator(".xterm-rows").getByText("shown late").waitFor();
  await checkQuiet(page, [/404/]);
});

test("a terminal that is refused says why", async () => {
  await terminal("refused", "exec cat");
  const reader = await daemon.call("POST", "v1/login-links", { role: "read" });
  const page = await open({ login: false, hash: null });
  await page.goto(reader.urls[0]);
  await page.goto(new URL("#/session/refused/terminal", daemon.url).href);
  await page.getByText(/needs the role operate/).waitFor();
});

test("sessions in groups of their users and agents", async () => {
  for (const [id, userId] of [["g-1", "grace"], ["g-2", "grace"], ["g-3", "heidi"]]) await daemon.session(id, { userId });
  const page = await open();
  await page.getByRole("searchbox", { name: "Search the sessions" }).fill("g-");
  await page.locator("tr.session").nth(3).waitFor({ state: "detached" });
  await page.getByLabel("Group").selectOption("user");
  await page.locator("tr.group", { hasText: "grace" }).getByText(/^2 ·/).waitFor();
  const order = await page.locator("table.sessions tbody tr").evaluateAll((rows) => rows.map((row) => (row.className === "group" ? row.querySelector("bdi").textContent : row.querySelector("a").textContent)));
  assert.deepEqual(order, ["grace", "g-2", "g-1", "heidi", "g-3"].filter((name) => order.includes(name)));
  assert.equal(order.length, 5);
  await page.getByLabel("Group").selectOption("agent");
  await page.locator("tr.group", { hasText: "acp" }).getByText(/^3 ·/).waitFor();
  await checkQuiet(page, [/404/]);
});

test("the form offers what the machine has", async () => {
  const page = await open({ hash: "#/?new" });
  const form = page.locator("form.start");
  await form.locator("select[name=agent] option").first().waitFor({ state: "attached" });
  const groups = await form.locator("select[name=agent] optgroup").evaluateAll((found) => found.map((group) => [group.label, [...group.querySelectorAll("option")].map((option) => option.value)]));
  const [ready, missing] = groups;
  assert.ok(ready[0] === "Ready" && ready[1].includes("acp") && ready[1].includes("shown"), JSON.stringify(groups));
  if (missing) {
    await form.locator("select[name=agent]").selectOption(missing[1][0]);
    await form.getByRole("button", { name: "Copy the command that installs it" }).waitFor();
  }
  await form.locator("select[name=agent]").selectOption("shown");
  await form.locator("summary").first().click();
  await form.locator("input[name=memory]").fill("700M");
  await form.locator("input[name=processes]").fill("40");
  await form.locator("input[name=user]").fill("ivan");
  await form.locator("select[name=permissions]").selectOption("deny");
  await form.locator("select[name=containment]").selectOption("baseline");
  await form.locator("textarea[name=allow]").fill("make *\n\ncargo test*");
  await form.locator("textarea[name=deny]").fill("make install");
  await form.getByRole("button", { name: "Start" }).click();
  await page.locator("h1").waitFor();
  await page.getByRole("link", { name: "Processes" }).click();
  await page.getByRole("meter", { name: /Limit on memory/ }).waitFor();
  await page.getByRole("meter", { name: /Limit on processes/ }).waitFor();
  const list = await daemon.call("GET", "v1/sessions");
  const started = list.find((session) => session.userId === "ivan");
  assert.deepEqual([started.agent, started.measures.layers], ["shown", ["baseline"]]);
  const record = (await daemon.call("GET", "v1/records")).find((one) => one.sessionId === started.sessionId);
  assert.deepEqual(record.config.permissions.rules.map(({ command, decision }) => `${decision} ${command}`), ["deny make install", "allow make *", "allow cargo test*"]);
  assert.equal(record.config.permissionMode, "deny");
  await checkQuiet(page, [/404/]);
});

test("changes in a workspace are seen, applied and dropped", async () => {
  const tree = path.join(daemon.work, "tree");
  mkdirSync(tree);
  writeFileSync(path.join(tree, "notes"), "one\n");
  const page = await open({ hash: "#/?new" });
  const form = page.locator("form.start");
  await form.locator("select[name=agent]").selectOption("command");
  await form.locator("input[name=command]").fill("sh -c 'echo two >> notes; echo \"<b>new\" > other; exec cat'");
  await form.locator("input[name=cwd]").fill(tree);
  await form.locator("summary").first().click();
  await form.locator("input[name=id]").fill("works");
  await form.locator("select[name=workspace]").selectOption("copy");
  await form.getByRole("button", { name: "Start" }).click();
  await page.getByText(`works in a copy of ${tree}`).waitFor();
  await page.getByRole("link", { name: "Changes" }).click();
  const view = page.getByRole("region", { name: "Changes in the workspace" });
  // The agent may not have written yet.
  while (!(await view.getByText("2 files have changed").isVisible())) {
    const looked = page.waitForResponse(/workspace\/diff/);
    await view.getByRole("button", { name: "Look again" }).click();
    await looked;
  }
  await view.locator(".plus", { hasText: "+two" }).waitFor();
  await view.locator(".plus", { hasText: "+<b>new" }).waitFor();
  assert.equal(readFileSync(path.join(tree, "notes"), "utf8"), "one\n");
  // Its session lives, as the next list says.
  await view.locator("button:disabled", { hasText: "Drop" }).waitFor();
  await view.getByRole("button", { name: "Apply" }).click();
  await view.getByText("Nothing has changed.").waitFor();
  assert.equal(readFileSync(path.join(tree, "notes"), "utf8"), "one\ntwo\n");
  await daemon.call("POST", "v1/sessions/works/kill", {});
  await view.locator("button:enabled", { hasText: "Drop" }).click();
  await page.locator("dialog").getByRole("button", { name: "Drop the workspace" }).click();
  await page.getByText("This session has no workspace of its own, or it is dropped.").waitFor();
  await checkQuiet(page, [/404/]);
});

test("a kill is seen as it happens, then its receipt", async () => {
  await daemon.session("dies");
  await daemon.ask("dies", "ignore-term sleep 1000\nspawn exec sleep 611");
  const page = await open({ hash: "#/session/dies/processes" });
  await page.locator("table.tree tr", { hasText: "sleep 611" }).waitFor();
  await page.keyboard.press("K");
  await page.locator("dialog").getByRole("button", { name: "Kill the session" }).click();
  const panel = page.locator("dialog .killing");
  await panel.getByText(/asked to end \(SIGTERM\)/).waitFor();
  await panel.locator("tr", { hasText: "sleep 611" }).getByText("SIGTERM").waitFor();
  await panel.getByText("resists").first().waitFor();
  const receipt = page.locator("dialog .receipt");
  await receipt.getByText("Nothing is left").waitFor();
  await receipt.getByText("resisted").first().waitFor();
  await checkQuiet(page, [/404/]);
});

test("the timeline of each turn", async () => {
  await daemon.session("time");
  await daemon.ask("time", "spawn exec sleep 621");
  await daemon.ask("time", "run sleep 0.01\nspawn exec sleep 622");
  const page = await open({ hash: "#/session/time/processes" });
  const timeline = page.locator("ol.timeline");
  await timeline.getByText("sleep 622").first().waitFor();
  assert.equal(await timeline.getByText("sleep 621").count(), 0);
  await timeline.locator("li", { hasText: "exit 0" }).first().waitFor();
  await page.getByRole("combobox", { name: /^Turn/ }).selectOption("1");
  await timeline.locator("li", { hasText: "sleep 621" }).getByText("runs").waitFor();
  assert.equal(await timeline.getByText("sleep 622").count(), 0);
  // It follows what ends after the turn.
  const processes = await daemon.call("GET", "v1/sessions/time/processes");
  const sleeper = processes.find((process) => process.args?.includes("621") && process.status === "running");
  await daemon.call("POST", `v1/sessions/time/kill`, { pid: sleeper.id.pid });
  await timeline.locator("li", { hasText: "sleep 621" }).getByText("SIGTERM").waitFor();
  await checkQuiet(page, [/404/]);
});

/** Stands for the browser's notifications; what is shown is in `shown`. */
const notifications = (permission) => `
  globalThis.shown = [];
  globalThis.asked = 0;
  globalThis.Notification = class {
    static permission = ${JSON.stringify(permission)};
    static async requestPermission() { globalThis.asked++; return this.permission = "granted"; }
    constructor(title, options) { Object.assign(this, { title, ...options, isClosed: false }); globalThis.shown.push(this); }
    close() { this.isClosed = true; }
  };
  document.hasFocus = () => false;`;

test("a question is a notification, which goes with its answer", async () => {
  await daemon.session("noticed", { lifecycle: { title: "Noticed" } });
  const page = await open({ hash: null });
  await page.addInitScript(notifications("granted"));
  await page.goto(daemon.url);
  await page.getByRole("link", { name: "Noticed" }).waitFor();
  await daemon.prompt("noticed", "ask May I?\nsay thanks");
  await page.waitForFunction(() => globalThis.shown.length === 1);
  assert.equal(await page.evaluate(() => globalThis.shown[0].title), "Noticed asks");
  await page.getByRole("button", { name: /1 .*question/ }).click();
  await page.locator(".inbox .permission").getByRole("button", { name: /Allow once/ }).click();
  await page.waitForFunction(() => globalThis.shown[0].isClosed);
  assert.equal(await page.evaluate(() => globalThis.shown.length), 1);
});

test("notifications are asked for once", async () => {
  await daemon.session("offer");
  await daemon.prompt("offer", "ask May I?");
  const page = await open({ hash: null });
  await page.addInitScript(notifications("default"));
  await page.goto(new URL("#/session/offer", daemon.url).href);
  const offer = page.locator(".open-cards .notify-offer");
  await offer.getByRole("button", { name: "No" }).click();
  await offer.waitFor({ state: "detached" });
  await page.reload();
  await page.locator(".open-cards .permission").waitFor();
  assert.equal(await offer.count(), 0);
  assert.equal(await page.evaluate(() => globalThis.asked), 0, "no dialog without a click");
  await daemon.call("POST", "v1/sessions/offer/abort", {});
});

test("each view lists its keys", async () => {
  await daemon.session("keys");
  const page = await open();
  await page.locator("tr.session").first().waitFor();
  const listed = async (wanted) => {
    await page.keyboard.press("?");
    const keys = page.locator("dialog dl.keys");
    for (const text of wanted) await keys.getByText(text, { exact: true }).first().waitFor();
    await page.keyboard.press("Escape");
    await keys.waitFor({ state: "detached" });
  };
  await listed(["Keys", "New session", "Switch the theme", "Search the sessions", "Next row"]);
  await page.goto(new URL("#/session/keys", daemon.url).href);
  await page.locator("#prompt").waitFor();
  await listed(["Kill the session", "Processes", "Back to the sessions", "To the end of the conversation", "Write a prompt"]);
  for (const [key, view] of [["Alt+2", ".processes-view"], ["Alt+3", ".events-view"], ["Alt+4", ".terminal-view"], ["Alt+1", ".conversation"]]) {
    await page.keyboard.press(key);
    await page.locator(view).waitFor();
  }
  await page.keyboard.press("u");
  await page.locator("table.sessions").waitFor();
  await checkQuiet(page, [/404/]);
});

test("a fleet: its nodes, and the node of each session", async () => {
  await daemon.session("here");
  await daemon.session("there");
  const page = await open({ hash: null });
  const health = await daemon.call("GET", "v1/health");
  const node = (name, more) => ({
    node: name, incarnation: "1", version: "0.1.0", addresses: [], labels: {}, capacity: null, sessions: 1, agents: ["acp"], takesOver: true, draining: false,
    layers: ["baseline"], backlog: 0, presence: "alive", silentSeconds: 2, isSelf: false, ...more,
  });
  const nodes = [
    node("a", { isSelf: true, capacity: 40, backlog: 7 }), node("b", { labels: { gpu: "1" }, addresses: ["https://10.0.0.7:8480"] }),
    node("c", { draining: true }), node("<b>d", { presence: "silent", silentSeconds: 90 }),
  ];
  const json = (body) => (route) => route.fulfill({ status: 200, contentType: "application/json", body: JSON.stringify(body) });
  await page.route(/\/v1\/health/, json({ ...health, daemon: { ...health.daemon, node: "a" } }));
  await page.route(/\/v1\/fleet\/nodes/, json(nodes));
  await page.route(/\/v1\/fleet\/sessions/, json([["here", "a"], ["there", "b"]].map(([sessionId, node]) => ({ sessionId, node, epoch: 1 }))));
  await page.goto(new URL("#/", daemon.url).href);
  const row = (id) => page.locator("tr.session", { hasText: id });
  await row("there").locator(".c-node").getByText("b", { exact: true }).waitFor();
  await row("here").locator(".c-node").getByText("a", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Node" }).click();
  const order = await page.locator("tr.session .c-node").allInnerTexts();
  assert.deepEqual(order.filter((name) => name !== "–"), ["a", "b"]);
  await page.goto(new URL("#/machine", daemon.url).href);
  const table = page.getByRole("region", { name: "Table of the nodes" });
  await table.getByText("this one").waitFor();
  const text = (await table.innerText()).replace(/\s+/g, " ");
  for (const part of ["1 of 40", "7 events wait", "gpu=1", "https://10.0.0.7:8480", "· draining", "✗ silent", "<b>d"]) assert.ok(text.includes(part), `${part} in ${text}`);
  await checkQuiet(page, [/404/]);
});

test("without a fleet there are no nodes", async () => {
  const asked = [];
  const page = await open({ hash: null });
  page.on("request", (request) => { if (request.url().includes("/v1/fleet")) asked.push(request.url()); });
  await page.goto(new URL("#/machine", daemon.url).href);
  await page.getByText("Since the daemon began").waitFor();
  assert.equal(await page.locator("#nodes").count(), 0);
  await page.goto(new URL("#/", daemon.url).href);
  await page.locator("tr.session").first().waitFor();
  assert.equal(await page.getByRole("button", { name: "Node", exact: true }).count(), 0);
  assert.deepEqual(asked, []);
  await checkQuiet(page, [/404/]);
});
