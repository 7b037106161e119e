// What a session shows and does, part by part: the list's columns, the conversation, the prompt box, answers by key, processes, events, terminal, machine.
import { test } from "node:test";
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { setUp, startDaemon, checkQuiet, program, prompt } from "./lib.mjs";

const { daemon, open } = await setUp();
const clipboard = { context: { permissions: ["clipboard-read", "clipboard-write"] } };
const copied = (page) => page.evaluate(() => navigator.clipboard.readText());
const offset = (number) => String(number).padStart(20, "0");

/** Shows a session whose events are these: `[type, payload, metadata]`. */
async function openEvents(id, events) {
  await daemon.session(id);
  const page = await open({ hash: null, ...clipboard });
  const body = events.map(([type, payload, metadata = { turn: 1 }], at) => `id: ${at + 1}\ndata: ${JSON.stringify({ offset: offset(at + 1), type, version: 1, createdAt: new Date(Date.UTC(2026, 0, 1) + at * 1000).toISOString(), eventStreamId: id, payload, metadata })}\n\n`).join("");
  await page.route(new RegExp(`/v1/sessions/${id}/events`), (route) => route.fulfill({ status: 200, contentType: "text/event-stream", body: route.request().headers()["last-event-id"] ? "" : body }));
  await page.goto(new URL(`#/session/${id}`, daemon.url).href);
  await page.locator(".turn").first().waitFor();
  return page;
}

test("each column of the list, sorted, filtered and searched", async () => {
  await daemon.session("col-1", { userId: "ada", lifecycle: { title: "Columns" } }, ["--modes"]);
  await daemon.ask("col-1", "tokens 12000 900\ncost 25\nspawn exec sleep 601");
  await daemon.session("col-2", { userId: "bob" });
  await daemon.prompt("col-2", "wait");
  await daemon.session("col-3", { userId: "bob" });
  await daemon.call("POST", "v1/sessions/col-3/kill", {});
  const page = await open();
  await page.getByRole("searchbox").fill("col-");
  const row = page.locator("tr.session", { hasText: "Columns" });
  const cell = (name) => row.locator(`td.c-${name}`);
  await cell("tokens").getByText("12.9k").waitFor();
  await cell("procs").getByText("2", { exact: true }).waitFor();
  const shown = {};
  for (const name of ["state", "title", "agent", "model", "user", "cwd", "turns", "tokens", "cost", "cpu", "memory", "procs", "age"]) shown[name] = (await cell(name).innerText()).trim();
  assert.deepEqual([shown.state, shown.title, shown.agent, shown.model, shown.user, shown.turns, shown.tokens, shown.cost], ["idle", "Columns col-1", "acp", "fake-1", "ada", "1", "12.9k", "$0.25"]);
  assert.ok(daemon.work.startsWith(shown.cwd.replace(/…$/, "")) || shown.cwd.startsWith("…"), shown.cwd);
  assert.match(shown.cpu, /^\d+(\.\d)? %$/);
  assert.match(shown.memory, /^\d+(\.\d)? (K|M)iB$/);
  assert.match(shown.age, /^\d+ s$/);

  const order = () => page.locator("tr.session").evaluateAll((rows) => rows.map((one) => one.querySelector("a").textContent));
  const sort = (name) => page.locator("table.sessions thead").getByRole("button", { name }).click();
  await sort("Tokens");
  assert.equal((await order())[0], "Columns");
  await page.locator("th[aria-sort=descending]", { hasText: "Tokens" }).waitFor();
  await sort("Tokens");
  assert.equal((await order()).at(-1), "Columns");
  await sort("User");
  assert.equal((await order())[0], "Columns");
  await page.getByRole("group", { name: "Filter by state" }).getByRole("button", { name: /^Ended/ }).click();
  assert.deepEqual(await order(), ["col-3"]);
  await page.getByRole("button", { name: /^Busy/ }).click();
  assert.deepEqual(await order(), ["col-2"]);
  await page.getByRole("button", { name: /^All/ }).click();
  await page.getByRole("searchbox").fill("col- ada");
  assert.deepEqual(await order(), ["Columns"]);
  await daemon.call("POST", "v1/sessions/col-2/abort", {});
  await checkQuiet(page, [/404/]);
});

test("the form: profile, model, mode, thinking, directory, containment; what was chosen is there the next time", async () => {
  await daemon.call("PUT", "v1/profiles/careful", { agent: "acp", description: "with care" });
  await daemon.session("used", {}, ["--modes"]);
  await daemon.call("POST", "v1/sessions/used/operations", { setModel: { model: "fake-2" } });
  const page = await open({ hash: "#/?new" });
  const form = page.locator("form.start");
  await form.locator("select[name=agent]").selectOption("acp");
  await form.locator("input[name=command]").fill(`${program} fake-agent --modes`);
  await form.locator("input[name=cwd]").fill(daemon.folder);
  await form.locator("select[name=profile]").selectOption("careful");
  await form.locator("summary").first().click();
  // Models that sessions of this agent have are offered.
  await form.locator("datalist#models option[value=fake-2]").waitFor({ state: "attached" });
  assert.deepEqual(await form.locator("select[name=containment] option").evaluateAll((options) => options.map((option) => option.value)), ["", "auto", "baseline", "cgroup", "strict"]);
  await form.locator("input[name=id]").fill("formed");
  await form.locator("input[name=model]").fill("fake-2");
  await form.locator("input[name=mode]").fill("build");
  await form.locator("input[name=thinking]").fill("high");
  await form.getByRole("button", { name: "Start" }).click();
  await page.locator("h1", { hasText: "formed" }).waitFor();
  const head = page.locator(".session-head");
  for (const text of ["model fake-2", "mode build", "thinking high"]) await head.getByRole("button", { name: text }).waitFor();
  await head.getByText(daemon.folder, { exact: true }).waitFor();
  const { config } = (await daemon.call("GET", "v1/records")).find((record) => record.sessionId === "formed");
  assert.deepEqual([config.profile, config.model, config.mode, config.thinking, config.cwd], ["careful", "fake-2", "build", "high", daemon.folder]);
  await page.goto(new URL("#/?new", daemon.url).href);
  assert.deepEqual([await form.locator("select[name=agent]").inputValue(), await form.locator("input[name=cwd]").inputValue()], ["acp", daemon.folder]);
  await checkQuiet(page, [/404/]);
});

test("a conversation has markdown, code, folded thinking, tools, diffs, a plan, a picture, sub-agents, usage and cost", async () => {
  await daemon.session("all", {}, ["--modes"]);
  await daemon.ask("all", "think I think\nsay # Heading\nsay Some **bold** text\nsay - [x] done\nsay ```rust\nsay let x = 1; // one\nsay ```\nrun echo out; sleep 0.05\nedit src/a.rs\nplan 1/3\nsubagent found it\nimage\nusage\ntokens 12000 900 4000 0\ncost 25");
  const page = await open({ hash: "#/session/all", ...clipboard });
  const chat = page.locator(".chat-content");
  await chat.getByRole("heading", { name: "Heading" }).waitFor();
  assert.equal(await chat.locator("strong", { hasText: "bold" }).count(), 1);
  // Code has colours, and is copied as it was.
  const code = chat.locator("figure.code", { hasText: "let x" }).first();
  await code.locator(".tok-keyword", { hasText: "let" }).waitFor();
  await code.locator(".tok-comment", { hasText: "// one" }).waitFor();
  await code.getByRole("button", { name: "Copy code" }).click();
  assert.equal(await copied(page), "let x = 1; // one");
  // Thinking is folded until somebody asks.
  assert.equal(await chat.locator(".thinking").getByText("I think").count(), 0);
  await chat.locator(".thinking summary").first().click();
  await chat.locator(".thinking .markdown", { hasText: "I think" }).waitFor();
  // A tool: what it was given, what it said, how long it took.
  const tool = chat.locator("details.tool", { hasText: "echo out" }).first();
  await tool.locator(".time").getByText(/^\d+ ms$|^\d\.\d s$/).waitFor();
  await tool.locator("summary").first().click();
  assert.ok((await tool.getByLabel("Input", { exact: true }).innerText()).includes("echo out"));
  await tool.getByLabel("Output", { exact: true }).getByText("out").first().waitFor();
  // An edit as a diff, a plan as a checklist.
  const diff = chat.locator("figure.diff", { hasText: "src/a.rs" });
  await diff.locator(".plus").first().waitFor();
  await diff.locator(".minus").first().waitFor();
  const plan = chat.getByRole("region", { name: "Plan" });
  await plan.getByText("1 of 3").waitFor();
  assert.deepEqual(await plan.locator("li").evaluateAll((steps) => steps.map((step) => step.firstChild.textContent)), ["☑", "◐", "☐"]);
  // A sub-agent's text and tools are inside its call.
  const nested = chat.getByRole("group", { name: "Sub-agent" });
  await nested.getByText("found it").first().waitFor();
  await nested.locator("details.tool", { hasText: "Read" }).first().waitFor();
  await chat.locator("img.picture").waitFor();
  // Usage and context window as bars, and what it cost.
  const head = page.locator(".session-head");
  await head.getByRole("meter", { name: /^Context window: [\d]+ of/ }).waitFor();
  await head.getByRole("img", { name: "Tokens: 12000 read, 4000 of them from a cache; 900 written" }).waitFor();
  const widths = await head.locator(".bar-part").evaluateAll((parts) => parts.map((part) => Math.round(parseFloat(part.style.width))));
  assert.deepEqual(widths, [31, 62, 7]);
  await head.getByText("$0.25").waitFor();
  await chat.locator(".turn footer").getByText("12.0k in, 900 out · $0.25").waitFor();
  await checkQuiet(page, [/404/]);
});

test("an error has its attempt, and who did what is noted", async () => {
  const page = await openEvents("errors", [
    ["turn:started", { prompt: "go", attachments: [] }],
    ["stream:error", { code: "overloaded", message: "try later", retryable: true, attempt: 2, delayMs: 1500 }],
    ["audit:call", { caller: "first", user: "grace", role: "operate", route: "/v1/sessions/{id}/abort", outcome: "done" }, {}],
    ["stream:complete", { stopReason: "cancelled", usage: null }],
    ["session:model", { model: "fake-2", by: "agent" }, {}],
  ]);
  const failure = page.getByRole("alert").filter({ hasText: "overloaded" });
  assert.equal((await failure.innerText()).replace(/\s+/g, " ").trim(), "overloaded try later attempt 2, again in 1.5 s · may succeed later");
  await page.getByText("grace aborted the turn").waitFor();
  await page.getByText("model is fake-2 (by the agent)").waitFor();
  await page.locator(".turn footer").getByText("aborted").waitFor();
});

test("model, mode and thinking are switched", async () => {
  await daemon.session("switch", {}, ["--modes"]);
  const page = await open({ hash: "#/session/switch" });
  for (const [name, value] of [["model", "fake-2"], ["mode", "plan"], ["thinking", "high"]]) {
    await page.locator(".session-head").getByRole("button", { name: new RegExp(`^${name} `) }).click();
    await page.locator(".setting-form").getByLabel(name).fill(value);
    await page.locator(".setting-form").getByRole("button", { name: "Set" }).click();
    await page.locator(".session-head").getByRole("button", { name: `${name} ${value}` }).waitFor();
    await page.locator(".note", { hasText: `${name} is ${value}` }).waitFor();
  }
  await daemon.ask("switch", "model\nmode\nthinking");
  for (const value of ["fake-2", "plan", "high"]) await page.locator(".text-item").getByText(value).first().waitFor();
  await checkQuiet(page, [/404/]);
});

test("slash commands are offered, chosen and sent", async () => {
  await daemon.session("slash");
  await daemon.ask("slash", "commands");
  const page = await open({ hash: "#/session/slash" });
  await page.locator("#prompt").fill("/");
  const offered = page.getByRole("listbox", { name: "Commands of the agent" });
  assert.deepEqual(await offered.locator("strong").allInnerTexts(), ["/review", "/test", "/compact"]);
  await page.locator("#prompt").press("ArrowDown");
  await page.locator("#prompt").press("Enter");
  assert.equal(await page.locator("#prompt").inputValue(), "/test ");
  await page.locator("#prompt").pressSequentially("unit");
  await page.locator("#prompt").press("Enter");
  await page.locator(".prompt").getByText("/test unit").waitFor();
  await checkQuiet(page, [/404/]);
});

test("a picture and a file are pasted, one is taken away, and the agent gets them", async () => {
  await daemon.session("paste");
  const page = await open({ hash: "#/session/paste" });
  await page.locator("#prompt").waitFor();
  const paste = (name, type, bytes) => page.locator("#prompt").evaluate((area, [name, type, bytes]) => {
    const data = new DataTransfer();
    data.items.add(new File([Uint8Array.from(bytes)], name, { type }));
    area.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
  }, [name, type, [...bytes]]);
  const png = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==", "base64");
  await paste("dot.png", "image/png", png);
  await paste("notes.txt", "text/plain", Buffer.from("kept words\nblocks"));
  await paste("gone.txt", "text/plain", Buffer.from("no words"));
  await page.locator(".files .attachment").nth(2).waitFor();
  await page.locator(".files img").waitFor();
  await page.getByRole("button", { name: "Remove gone.txt" }).click();
  await page.locator(".files .attachment").nth(2).waitFor({ state: "detached" });
  await prompt(page, "say here they are");
  // The agent says what it got: the prompt, the picture, and one file.
  const said = page.locator(".text-item").last();
  await said.getByText(/image\/png/).first().waitFor();
  assert.match(await said.innerText(), /kept words\s+text image\/png:iVBOR\S+ text/);
  await page.locator(".prompt .attachment").first().waitFor();
  // What is neither is refused with a reason.
  await paste("program", "application/octet-stream", Buffer.from([0, 1, 2]));
  await page.locator(".toast").getByText("neither text nor a picture").waitFor();
});

test("what is typed while a prompt is on its way stays", async () => {
  await daemon.session("slow");
  const page = await open({ hash: "#/session/slow" });
  let letPass = () => {};
  const passes = new Promise((resolve) => { letPass = resolve; });
  await page.route(/\/slow\/prompt$/, async (route) => { await passes; await route.continue(); });
  const box = page.locator("#prompt");
  await box.fill("say sent");
  await box.press("Enter");
  await box.fill("the next one");
  letPass();
  await page.locator(".turn footer").first().waitFor();
  assert.equal(await box.inputValue(), "the next one");
  await box.fill("say sent again");
  await box.press("Enter");
  await page.getByText("sent again", { exact: true }).last().waitFor();
  await page.waitForFunction(() => document.querySelector("#prompt").value === "");
});

test("a running turn is steered", async () => {
  await daemon.session("steer", {}, []);
  const page = await open({ hash: "#/session/steer" });
  await page.locator("#prompt").waitFor();
  await prompt(page, "say begun\nwait");
  await page.getByText("begun", { exact: true }).last().waitFor();
  const steered = page.waitForRequest((request) => request.url().endsWith("/steer"));
  await page.locator("#prompt").fill("say another way");
  await page.getByRole("button", { name: "Steer" }).click();
  assert.equal(JSON.parse((await steered).postData()).text, "say another way");
  // This agent cannot: it says so, and what was typed stays.
  const answer = await page.waitForFunction(() => document.querySelector(".toast")?.textContent || document.querySelector("#prompt").value === "");
  assert.ok(await answer.jsonValue());
  await daemon.call("POST", "v1/sessions/steer/abort", {});
});

test("questions are answered by keys, with words, and while one types", async () => {
  await daemon.session("keys");
  const page = await open({ hash: "#/session/keys" });
  await page.locator("#prompt").waitFor();
  const card = page.locator(".open-cards .permission");
  const answered = async (text, act) => {
    await prompt(page, `ask ${text}`);
    await card.getByText(text).first().waitFor();
    await act();
    await card.waitFor({ state: "detached" });
    return (await page.locator(".asked", { hasText: text }).filter({ hasText: / by / }).innerText()).replace(/\s+/g, " ");
  };
  const away = () => page.locator("h1").click();
  assert.match(await answered("first?", async () => { await away(); await page.keyboard.press("d"); }), /Reject by/);
  assert.match(await answered("second?", async () => { await away(); await page.keyboard.press("2"); }), /Allow always by/);
  assert.match(await answered("third?", async () => { await page.locator("#prompt").fill("half a"); await page.keyboard.press("Alt+a"); }), /Allow once by/);
  assert.equal(await page.locator("#prompt").inputValue(), "half a");
  // This agent cannot be told why: the page says so, and goes on asking.
  assert.match(await answered("fourth?", async () => {
    await card.getByRole("button", { name: "Deny with words…" }).click();
    await card.getByLabel("What the agent is told").fill("not on a Friday");
    const told = page.waitForRequest((request) => request.method() === "POST" && request.url().includes("/permissions/"));
    await card.getByRole("button", { name: "Deny", exact: true }).click();
    assert.deepEqual(JSON.parse((await told).postData()).answer, { denyWith: { message: "not on a Friday" } });
    await page.locator(".toast").getByText(/cannot be told why/).waitFor();
    await away();
    await page.keyboard.press("d");
  }), /Reject by/);
  await checkQuiet(page, [/404/, /50[01]/]);
});

test("nothing moves while text streams", async () => {
  await daemon.session("still");
  const page = await open({ hash: "#/session/still" });
  await page.locator("#prompt").waitFor();
  await prompt(page, "say before");
  await page.getByText("before", { exact: true }).last().waitFor();
  await page.locator(".turn footer").first().waitFor();
  await page.evaluate(() => {
    globalThis.shifts = [];
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) {
        if (!entry.hadRecentInput) globalThis.shifts.push({ value: entry.value, nodes: entry.sources.map((source) => `${source.node?.nodeName}.${source.node?.className}`).join(" ") });
      }
    }).observe({ type: "layout-shift", buffered: false });
  });
  // By another caller, so that no input of this page excuses a shift.
  await daemon.ask("still", "think hm\nmarkdown\nlive 5 20ms\nplan\nrun echo x\nedit a.rs");
  await page.locator(".turn footer").nth(1).waitFor();
  const shifts = await page.evaluate(() => globalThis.shifts);
  const sum = shifts.reduce((all, shift) => all + shift.value, 0);
  assert.ok(sum < 0.05 && shifts.every((shift) => shift.value < 0.02), JSON.stringify(shifts));
});

test("old turns are released, and come back when somebody scrolls up", async () => {
  await daemon.session("long");
  for (let number = 1; number <= 45; number++) await daemon.ask("long", `say answer ${number}\nrun echo tool ${number}`);
  const page = await open({ hash: "#/session/long" });
  await page.getByText("answer 45", { exact: true }).last().waitFor();
  assert.equal(await page.getByText("answer 20", { exact: true }).count(), 0);
  const chat = page.locator(".chat");
  for (let number = 0; number < 8 && !(await page.locator(".text-item").getByText("answer 1", { exact: true }).count()); number++) {
    const drawn = await page.locator("article.turn").count();
    await chat.evaluate((box) => { box.scrollTop = 0; box.dispatchEvent(new Event("scroll")); });
    await page.waitForFunction((drawn) => document.querySelectorAll("article.turn").length > drawn, drawn);
  }
  const first = page.getByRole("article", { name: "Turn 1", exact: true });
  await first.locator(".text-item").getByText("answer 1", { exact: true }).waitFor();
  await first.locator("details.tool", { hasText: "echo tool 1" }).waitFor();
  assert.equal(await page.locator("article.turn .text-item").count(), 45, "each turn once, with what it said");
  // While somebody reads, what comes below takes nothing away above.
  await daemon.ask("long", "say answer 46");
  await page.getByText("answer 46", { exact: true }).last().waitFor();
  assert.equal(await first.count(), 1);
  await page.getByRole("button", { name: "To the end" }).click();
  await first.waitFor({ state: "detached" });
  await checkQuiet(page, [/404/]);
});

test("processes: sparklines, limits, a tree and all but the agent killed, exit codes of the gone", async () => {
  await daemon.session("procs", { limits: { memoryBytes: 1 << 30, processes: 60 } });
  await daemon.ask("procs", "run exit 7\nspawn sleep 801 & sleep 802\nspawn exec sleep 803");
  const page = await open({ hash: "#/session/procs/processes" });
  const tree = page.locator("table.tree");
  await tree.locator("tr", { hasText: "sleep 801" }).first().waitFor();
  // Measures of several looks make a line.
  await page.waitForFunction(() => [...document.querySelectorAll("table.tree svg.spark polyline")].filter((line) => line.getAttribute("points").split(" ").length >= 3).length >= 2);
  for (const limit of ["memory", "processes"]) assert.match(await page.getByRole("meter", { name: `Limit on ${limit}` }).innerText(), /\d.* \/ /);
  const gone = page.getByRole("region", { name: "Processes that are gone" });
  await gone.getByRole("cell", { name: "exit 7" }).first().waitFor();
  const shell = tree.locator("tr", { hasText: "sleep 801 & sleep 802" });
  await shell.getByRole("combobox").selectOption("tree");
  await page.locator("dialog").getByRole("button", { name: "Kill the tree" }).click();
  await page.getByRole("dialog", { name: "Kill of a tree" }).getByText("They are gone: 3 processes ended").waitFor();
  await page.locator("dialog").getByRole("button", { name: "Close", exact: true }).last().click();
  await tree.locator("tr", { hasText: "sleep 802" }).first().waitFor({ state: "detached" });
  await tree.locator("tr", { hasText: "sleep 803" }).waitFor();
  await page.getByRole("button", { name: "Kill all but the agent" }).click();
  await page.locator("dialog").getByRole("button", { name: "Kill all but the agent" }).click();
  await page.locator("dialog .receipt").getByText("0 survivors").waitFor();
  await page.locator("dialog").getByRole("button", { name: "Close", exact: true }).last().click();
  await tree.locator("tr", { hasText: "sleep 803" }).waitFor({ state: "detached" });
  assert.equal(await tree.locator("tbody tr").count(), 1);
  await daemon.ask("procs", "say alive");
  await checkQuiet(page, [/404/]);
});

test("events are exported as they are shown, and one is copied with its link", async () => {
  await daemon.session("export");
  await daemon.ask("export", "say for the file");
  const page = await open({ hash: "#/session/export/events", ...clipboard });
  await page.locator("#event-type").selectOption("stream:*");
  const row = page.locator("table.rows tr", { hasText: "for the file" });
  await row.getByRole("link").click();
  await page.getByRole("button", { name: "Copy the event as JSON" }).click();
  const one = JSON.parse(await copied(page));
  assert.deepEqual([one.type, one.payload.text.trim()], ["stream:text", "for the file"]);
  await page.getByRole("button", { name: "Copy a link to the event" }).click();
  assert.equal(await copied(page), page.url());
  const coming = page.waitForEvent("download");
  await page.getByRole("button", { name: "Export" }).click();
  const download = await coming;
  assert.equal(download.suggestedFilename(), "export.ndjson");
  const lines = readFileSync(await download.path(), "utf8").trim().split("\n").map((line) => JSON.parse(line));
  assert.ok(lines.some((event) => event.offset === one.offset) && lines.every((event) => event.type.startsWith("stream:")), JSON.stringify(lines));
  await checkQuiet(page, [/404/]);
});

test("a terminal: paste, copy, a link that opens, and no more frames than are painted", async () => {
  const script = "stty -echo; echo https://example.com/from-the-terminal; read -r line; echo \"got $line\"; read -r line; seq 1 200000; echo last words; exec cat";
  await daemon.call("POST", "v1/sessions", { sessionId: "screen", agent: "command", command: ["bash", "-c", script], cwd: daemon.work, terminal: {} });
  const page = await open({ hash: null, ...clipboard });
  // Frames that the page has got and not painted yet.
  let behind = 0;
  let most = 0;
  let isPasted = () => {};
  const pasted = new Promise((resolve) => { isPasted = resolve; });
  await page.routeWebSocket(/\/v1\/sessions\/screen\/terminal/, (socket) => {
    assert.match(socket.url(), /window=\d+/);
    const server = socket.connectToServer();
    server.onMessage((message) => { if (typeof message !== "string") most = Math.max(most, ++behind); socket.send(message); });
    socket.onMessage((message) => {
      if (typeof message === "string" && message.includes("painted")) behind -= JSON.parse(message).frames;
      if (String(message).includes("pasted words")) isPasted();
      server.send(message);
    });
  });
  await page.goto(new URL("#/session/screen/terminal", daemon.url).href);
  await page.getByText("You have the keyboard").waitFor();
  const rows = page.locator(".xterm-rows");
  const address = rows.getByText("https://example.com/from-the-terminal").first();
  await address.waitFor();
  await page.context().route("https://example.com/**", (route) => route.fulfill({ status: 200, contentType: "text/plain", body: "there" }));
  const { x, y, height } = await address.boundingBox();
  const opened = page.context().waitForEvent("page");
  await page.mouse.move(x + 60, y + height / 2, { steps: 4 });
  await page.mouse.click(x + 60, y + height / 2);
  assert.equal((await opened).url(), "https://example.com/from-the-terminal");
  await page.bringToFront();
  await page.evaluate(() => navigator.clipboard.writeText("pasted words"));
  await page.getByRole("button", { name: "Paste" }).click();
  // The clipboard is read meanwhile: a key would come before it.
  await pasted;
  await page.keyboard.press("Enter");
  const got = rows.getByText("got pasted words", { exact: true });
  await got.waitFor();
  const box = await got.boundingBox();
  await page.mouse.dblclick(box.x + 4, box.y + box.height / 2);
  await page.getByRole("button", { name: "Copy", exact: true }).click();
  assert.equal(await copied(page), "got");
  await page.keyboard.press("Enter");
  await rows.getByText("last words").waitFor();
  assert.ok(most >= 1 && most <= 8, `${most} frames were not painted`);
  await checkQuiet(page, [/404/]);
});

test("a terminal at the width of a phone has as many columns as fit", async () => {
  await daemon.call("POST", "v1/sessions", { sessionId: "narrow", agent: "command", command: ["sh", "-c", "while :; do read -r line; stty size; done"], cwd: daemon.work, terminal: {} });
  const page = await open({ hash: "#/session/narrow/terminal", size: { width: 390, height: 844 } });
  await page.getByText("You have the keyboard").waitFor();
  await page.locator(".xterm-rows").click({ force: true });
  await page.keyboard.press("Enter");
  const size = page.locator(".xterm-rows").getByText(/^\d+ \d+$/).first();
  await size.waitFor();
  const [lines, columns] = (await size.innerText()).trim().split(" ").map(Number);
  assert.ok(columns >= 40 && columns <= 70 && lines >= 20, `${lines} × ${columns}`);
  assert.ok(await page.evaluate(() => document.querySelector(".xterm-screen").getBoundingClientRect().right <= innerWidth && document.documentElement.scrollWidth <= innerWidth));
  await checkQuiet(page, [/404/]);
});

test("on a phone the processes can be signalled, and one can log out", async () => {
  const link = await daemon.call("POST", "v1/login-links", { role: "operate" });
  await daemon.session("small");
  await daemon.ask("small", "spawn exec sleep 811");
  const page = await open({ login: false, hash: null, size: { width: 390, height: 844 } });
  await page.goto(link.urls[0]);
  await page.goto(new URL("#/session/small/processes", daemon.url).href);
  const row = page.locator("table.tree tr", { hasText: "sleep 811" });
  await row.waitFor();
  for (const part of [".p-cpu", ".p-memory", ".p-age", ".p-menu select"]) {
    const box = await row.locator(part).boundingBox();
    assert.ok(box && box.x >= 0 && box.x + box.width <= 390, `${part}: ${JSON.stringify(box)}`);
  }
  await row.getByRole("combobox").selectOption("SIGTERM");
  await row.waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Keys and settings" }).click();
  await page.locator("dialog").getByRole("button", { name: "Log out" }).click();
  await page.getByLabel("Token").waitFor();
});

test("the machine: checks, agents with what installs them, figures, and sessions recovered after a crash", async () => {
  const crashed = await startDaemon();
  await crashed.session("lost", { lifecycle: { title: "Lost in a crash" } });
  await crashed.crash();
  const page = await open({ hash: "#/machine" }, crashed);
  const recovered = page.locator("section", { has: page.locator("#recovered") });
  await recovered.getByRole("link", { name: "lost" }).waitFor();
  await recovered.getByText(/host died/).waitFor();
  const checks = page.getByRole("region", { name: "Table of the checks" });
  await checks.getByRole("row").nth(5).waitFor();
  await checks.getByText("✓ ok").first().waitFor();
  const agents = page.getByRole("region", { name: "Table of the agents" });
  await agents.getByRole("row", { name: /ACP acp/ }).getByText("✓ ready").waitFor();
  const missing = agents.getByRole("row").filter({ hasText: "– missing" });
  for (const row of await missing.all()) assert.match(await row.locator("code").last().innerText(), /install|npm|curl|pip|https?:/, await row.innerText());
  const figures = page.locator("dl.figures");
  for (const name of ["Sessions", "Processes", "Memory", "Turns", "Tokens", "Kills", "Survivors", "Kills without proof"]) await figures.getByText(name, { exact: true }).waitFor();
  await checkQuiet(page, [/404/]);
  await page.context().close();
  await crashed.stop();
});


