// The way of a user through the page, with the fake agent: start, read, answer, look at processes, kill, read the receipt.
import { test } from "node:test";
import assert from "node:assert/strict";
import { setUp, checkQuiet, program, prompt } from "./lib.mjs";

const { daemon, open } = await setUp();

test("a session from its start to its receipt", async () => {
  const page = await open();
  await page.getByRole("button", { name: "New session" }).first().click();
  const form = page.locator("form.start");
  await form.locator("select[name=agent]").selectOption("acp");
  await form.locator("input[name=command]").fill(`${program} fake-agent`);
  await form.locator("input[name=title]").fill("From the page");
  await form.locator("textarea[name=prompt]").fill("say Hello from the agent");
  await form.getByRole("button", { name: "Start" }).click();
  await page.getByText("Hello from the agent", { exact: true }).last().waitFor();
  await page.getByRole("heading", { name: "From the page" }).waitFor();

  // A request waits, and is answered by a key.
  await prompt(page, "ask May I delete it?\nsay after");
  const card = page.locator(".open-cards .permission");
  await card.waitFor();
  await page.getByRole("button", { name: /1 .*question/ }).waitFor();
  await page.locator(".session-head .state-asking").waitFor();
  await page.locator("h1").click();
  await page.keyboard.press("a");
  await page.getByText("permission: allow-once").waitFor();
  await card.waitFor({ state: "detached" });
  await page.locator(".session-head .state-asking").waitFor({ state: "detached" });
  await page.locator(".asked").getByText("Allow once").waitFor();

  // A daemon that listens.
  // Below those that the kernel gives to whoever asks for any.
  const port = 20_000 + Math.floor(Math.random() * 12_000);
  await prompt(page, `daemon exec node -e 'require("net").createServer().listen(${port},"127.0.0.1")'\nignore-term sleep 1000`);
  await page.getByRole("link", { name: "Processes" }).click();
  // Its parents, for as long as they live, have its words in their command line.
  const listens = page.getByRole("link", { name: `:${port}` });
  await page.locator("table.tree tr", { hasText: "createServer", has: listens }).filter({ hasText: "left its session" }).waitFor();

  await page.getByRole("button", { name: "Kill the session" }).click();
  await page.locator("dialog").getByRole("button", { name: "Kill the session" }).click();
  const receipt = page.locator("dialog .receipt");
  await receipt.getByText("Nothing is left").waitFor();
  await receipt.getByText("0 survivors").waitFor();
  await receipt.getByText("createServer").first().waitFor();
  // The shell that ignores SIGTERM.
  await receipt.getByText("resisted").first().waitFor();
  await page.locator("dialog").getByRole("button", { name: "Close", exact: true }).last().click();
  await page.getByText("Ended:").waitFor();
  await checkQuiet(page, [/404/]);
});

test("a login with a token, and no data without one", async () => {
  const page = await open({ login: false });
  await page.getByLabel("Token").waitFor();
  const refused = await fetch(new URL("v1/sessions", daemon.url));
  assert.equal(refused.status, 401);
  await page.getByLabel("Token").fill("wrong");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("alert").waitFor();
  await page.getByLabel("Token").fill(daemon.token);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("button", { name: "New session" }).first().waitFor();
  await checkQuiet(page, [/404/, /401/]);
});

test("a login by link, for one user's sessions, and its end", async (context) => {
  const link = await daemon.call("POST", "v1/login-links", { role: "operate", user: "ada" });

  await daemon.session("of-ada", { userId: "ada" });
  await daemon.session("of-bob", { userId: "bob" });
  const page = await open({ login: false, hash: null });
  await page.goto(link.urls[0]);
  if (process.env.PAGE_DIR) await page.goto(daemon.url);
  await page.locator("tr.session", { hasText: "of-ada" }).waitFor();
  assert.equal(await page.locator("tr.session", { hasText: "of-bob" }).count(), 0);
  await page.locator(".who").getByText("ada").waitFor();
  assert.equal(await page.evaluate(() => document.cookie), "", "no script reads the cookie");
  // It changes something: the server looks at the origin.
  await page.getByText("of-ada").first().click();
  await prompt(page, "say by cookie");
  await page.getByText("by cookie", { exact: true }).last().waitFor();
  await page.locator(".prompt .who").getByText("ada").waitFor();
  // So does the terminal.
  await page.getByRole("link", { name: "Terminal" }).click();
  await page.getByRole("button", { name: "A shell beside the agent" }).click();
  await page.getByText("You have the keyboard").waitFor();
  await page.keyboard.type("echo $((40+2)) by cookie\n");
  await page.locator(".xterm-rows").getByText("42 by cookie", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByLabel("Token").waitFor();
  const again = await open({ login: false, hash: null });
  await again.goto(link.urls[0]);
  await again.goto(daemon.url);
  await again.getByLabel("Token").waitFor();
});

test("two windows see each other's prompts and answers", async () => {
  await daemon.session("two");
  const one = await open({ hash: "#/session/two" });
  const other = await open({ hash: "#/session/two" });
  await other.locator("#prompt").waitFor();
  await prompt(one, "say first words\nask Shall I?");
  await other.getByText("first words", { exact: true }).last().waitFor();
  await other.locator(".open-cards .permission").getByRole("button", { name: /Reject/ }).click();
  await one.locator(".asked").getByText("Reject").waitFor();
  await one.locator(".open-cards .permission").waitFor({ state: "detached" });
  await prompt(other, "say second words");
  await one.getByText("second words", { exact: true }).last().waitFor();
  for (const page of [one, other]) await checkQuiet(page, [/404/]);
});

test("a prompt is queued, a turn is aborted, a prompt is steered", async () => {
  await daemon.session("turns");
  const page = await open({ hash: "#/session/turns" });
  await page.locator("#prompt").waitFor();
  await prompt(page, "say begun\nwait");
  await page.getByText("begun", { exact: true }).last().waitFor();
  await page.getByRole("button", { name: "Queue" }).waitFor();
  await prompt(page, "say from the queue");
  await page.locator(".queue").getByText("say from the queue").waitFor();
  await page.getByRole("button", { name: "Abort" }).click();
  await page.getByText("from the queue", { exact: true }).last().waitFor();
  await page.getByText("aborted").first().waitFor();
  await page.locator(".queue").waitFor({ state: "detached" });
  // The history comes with the arrow.
  await page.locator("#prompt").press("ArrowUp");
  assert.equal(await page.locator("#prompt").inputValue(), "say from the queue");
  await checkQuiet(page, [/404/]);
});

test("the connection breaks off, and what was missed comes in", async () => {
  await daemon.session("broken");
  const page = await open({ hash: "#/session/broken" });
  await page.locator(".link-live").waitFor();
  // Every stream ends, and none begins.
  await page.context().setOffline(true);
  await page.evaluate(() => new Promise((resolve) => { setTimeout(resolve, 100); }));
  await page.route("**/v1/**", (route) => route.abort());
  const stopped = daemon.ask("broken", "say while it was away");
  await stopped;
  await page.locator(".lost, .link-lost").first().waitFor();
  await page.context().setOffline(false);
  await page.unroute("**/v1/**");
  await page.getByText("while it was away", { exact: true }).last().waitFor();
  assert.equal(await page.locator(".text-item", { hasText: "while it was away" }).count(), 1);
});

test("events: filter, one as JSON, link", async () => {
  await daemon.session("ev");
  await daemon.ask("ev", "say an event");
  const page = await open({ hash: "#/session/ev/events" });
  const row = page.locator("table.rows tr", { hasText: "an event" }).filter({ hasText: "stream:text" });
  await row.first().waitFor();
  await row.getByRole("link").click();
  await page.locator(".one").getByText('"type": "stream:text"').waitFor();
  const link = page.url();
  assert.match(link, /offset=\d+/);
  await page.locator("#event-type").selectOption("permission:*");
  await page.getByText("No events.").waitFor();
  const again = await open({ hash: new URL(link).hash });
  await again.locator(".one").getByText("an event").waitFor();
  await checkQuiet(again, [/404/]);
});

test("who has prompted, by the name that the page's user gave", async () => {
  await daemon.session("named");
  const page = await open({ hash: "#/session/named" });
  await page.keyboard.press("?");
  await page.getByLabel("Your name, beside your answers").fill("Grace");
  await page.keyboard.press("Escape");
  await page.locator("#prompt").waitFor();
  await prompt(page, "say hi\nask Really?");
  await page.locator(".prompt .who").getByText("Grace").waitFor();
  await page.locator(".open-cards").getByRole("button", { name: /Allow once/ }).click();
  await page.locator(".asked").getByText("by Grace").waitFor();
});

test("a prompt that waits is dropped", async () => {
  await daemon.session("drop");
  await daemon.prompt("drop", "wait");
  await daemon.prompt("drop", "say never");
  const page = await open({ hash: "#/session/drop" });
  await page.locator(".queue").getByText("say never").waitFor();
  await page.getByRole("button", { name: "Drop: say never" }).click();
  await page.locator(".queue").waitFor({ state: "detached" });
  await checkQuiet(page, [/404/]);
});

test("a terminal: type, watch, take the keyboard, its end", async () => {
  await daemon.call("POST", "v1/sessions", { sessionId: "shell", agent: "command", command: ["sh"], cwd: daemon.work, terminal: {} });
  // With a token that was given, as with a cookie below.
  const one = await open({ hash: "#/session/shell/terminal" });
  await one.getByText("You have the keyboard").waitFor();
  await one.locator(".xterm-rows").click({ force: true });
  await one.keyboard.type("echo $((40+2)) end\n");
  await one.locator(".xterm-rows").getByText("42 end", { exact: true }).waitFor();
  const other = await open({ hash: "#/session/shell/terminal", size: { width: 390, height: 844 } });
  await other.getByText("You watch").waitFor();
  await other.locator(".xterm-rows").getByText("42 end", { exact: true }).waitFor();
  await other.getByRole("button", { name: "Take the keyboard" }).click();
  await other.getByText("You have the keyboard").waitFor();
  await one.getByText("You watch").waitFor();
  await other.keyboard.type("echo from-the-phone; exit 3\n");
  await other.getByText("exit 3").last().waitFor();
  for (const page of [one, other]) await checkQuiet(page, [/404/]);
});

test("keys: help, search, theme", async () => {
  await daemon.session("keyed", { lifecycle: { title: "A title to find" } });
  const page = await open();
  await page.getByText("A title to find").waitFor();
  await page.keyboard.press("?");
  await page.getByRole("heading", { name: "Keys and settings" }).waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("/");
  await page.keyboard.type("title to find");
  await page.locator("table.sessions tr.session").nth(1).waitFor({ state: "detached" });
  await page.keyboard.press("Enter");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "A title to find" }).waitFor();
  await page.locator("h1").click();
  const color = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await color();
  await page.keyboard.press("t");
  assert.notEqual(await color(), light);
  await page.keyboard.press("g");
  await page.keyboard.press("m");
  await page.getByRole("heading", { name: "Machine", exact: true }).waitFor();
  await page.getByText("Claude Code").first().waitFor();
  await checkQuiet(page, [/404/]);
});

test("one process of a tree is killed, and gets a signal", async () => {
  await daemon.session("tree");
  await daemon.ask("tree", "spawn exec sleep 711\nspawn exec sleep 722");
  const page = await open({ hash: "#/session/tree/processes" });
  const row = page.locator("table.tree tr", { hasText: "sleep 711" });
  await row.getByRole("combobox").selectOption("kill");
  await page.locator("dialog").getByRole("button", { name: "Kill the process" }).click();
  await page.locator("dialog .receipt").getByText("0 survivors").waitFor();
  await page.locator("dialog").getByRole("button", { name: "Close", exact: true }).last().click();
  await row.waitFor({ state: "detached" });
  const other = page.locator("table.tree tr", { hasText: "sleep 722" });
  await other.waitFor();
  await page.getByRole("region", { name: "Processes that are gone" }).getByRole("cell", { name: "SIGTERM" }).first().waitFor();
  // Any signal, to this process alone.
  await other.getByRole("combobox").selectOption("SIGINT");
  await other.waitFor({ state: "detached" });
  await page.getByRole("region", { name: "Processes that are gone" }).getByRole("cell", { name: "SIGINT" }).waitFor();
  await checkQuiet(page, [/404/]);
});
