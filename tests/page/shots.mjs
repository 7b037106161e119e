// Pictures of every view, in both themes, on a desk and at the width of a phone: node shots.mjs FOLDER. ONLY=name,name takes these alone.
import { mkdirSync, writeFileSync } from "node:fs";
import path from "node:path";
import { startDaemon, startBrowser, openWindow, program } from "./lib.mjs";

const folder = process.argv[2] ?? "shots";
const dev = process.env.PAGE_URL;
const only = process.env.ONLY?.split(",");
mkdirSync(folder, { recursive: true });
const AGENTS = `
[[agents]]
id = "shown"
protocol = "acp"
cmd = ["${program}", "fake-agent", "--store", "chats", "--modes"]
terminal_cmd = ["/bin/sh"]
session_config = { native_session_resume = true, attach_command = ["/bin/sh", "-c", "echo The screen of the agent itself; read -r line", "{id}"] }
`;
const daemon = await startDaemon({ agents: AGENTS });
const browser = await startBrowser();
try {
  await daemon.session("s-1", { lifecycle: { title: "Login page: remember the user" }, userId: "ada", limits: { memoryBytes: 1 << 30, processes: 50 } }, ["--modes"]);
  await daemon.ask("s-1", "think The user wants a login page.\nsay ## What I found\nsay The **form** is in `src/login.rs`. Three things are missing:\nsay \nsay 1. a check of the *token*\nsay 2. the [documentation](https://example.com/docs)\nsay 3. tests\nsay \nsay ```rust\nsay /// Logs a user in.\nsay pub fn login(user: &str) -> Result<Session, Error> {\nsay     let token = format!(\"{user}-{}\", 42); // not yet random\nsay     Ok(Session { token })\nsay }\nsay ```\nplan\ntool Bash\nusage");
  await daemon.ask("s-1", "run ls -la / | head -5\ntokens 12000 900\ncost 12\nsay | file | lines |\nsay |---|---|\nsay | a.rs | 10 |\nsay | b.rs | 220 |");
  const port = 20_000 + Math.floor(Math.random() * 20_000);
  const busy = "while sleep 0.2; do head -c 3000000 /dev/zero | sha256sum; done >/dev/null";
  await daemon.prompt("s-1", `daemon exec node -e 'require("net").createServer().listen(${port},"127.0.0.1")'\nspawn ${busy}\ndaemon exec sleep 500\nsetsid exec sleep 501\nspawn exec sleep 502\nask Delete the folder build?\nsay done`);
  await daemon.session("s-2", { userId: "bob", lifecycle: { title: "Refactor the parser" } });
  await daemon.ask("s-2", "say hello\nrun true");
  await daemon.session("s-3", { userId: "bob" });
  await daemon.call("POST", "v1/sessions/s-3/kill", {});
  await daemon.session("s-4", { userId: "ada" });
  await daemon.prompt("s-4", "say working on it\nwait");
  await daemon.call("POST", "v1/sessions", { sessionId: "s-5", agent: "command", command: ["sh", "-c", "printf '\\033]7501;state=working\\007'; ls -la --color / | head -20; exec cat"], cwd: daemon.work, terminal: {}, userId: "ada", lifecycle: { title: "A screen of its own" } });
  const tree = path.join(daemon.work, "tree");
  mkdirSync(tree);
  writeFileSync(path.join(tree, "notes.md"), "# Notes\n\none\n");
  await daemon.call("POST", "v1/sessions", { sessionId: "s-6", agent: "command", command: ["sh", "-c", "echo two >> notes.md; echo new > other; exec cat"], cwd: tree, workspace: "copy", userId: "ada", lifecycle: { title: "In a copy" } });
  await daemon.session("s-7", { userId: "eve", lifecycle: { title: "All that a conversation may have" } }, ["--modes"]);
  await daemon.ask("s-7", "think First I look at it.\nmarkdown\nrun echo one; exit 3\nedit src/parser.rs\ncreate src/new.rs\nplan 2/5\nsubagent the parser has a fault in line 7\nimage\ncommands\ntokens 41000 2300 18000 0\nusage\ncost 31");
  await daemon.prompt("s-7", "say a moment\nwait");
  await daemon.prompt("s-7", "say the next one");
  await daemon.call("POST", "v1/sessions", { sessionId: "s-8", agent: "shown", cwd: daemon.work, home: "own", userId: "eve", lifecycle: { title: "Somebody is at its screen" } });
  await daemon.ask("s-8", "say before the visit");
  await daemon.call("POST", "v1/sessions/s-8/visit", {});
  const url = dev ?? daemon.url;
  const shown = (selector) => async (page) => { await page.locator(selector).first().waitFor(); };
  // Name, address, and what is done there: a picture shows the view when that is through.
  const views = [
    ["sessions", "#/", shown("tr.session")],
    ["groups", "#/", async (page) => { await page.getByLabel("Group").selectOption("user"); await page.locator("tr.group").first().waitFor(); }],
    ["start", "#/?new", async (page) => { await page.locator("form.start summary").first().click(); }],
    ["missing", "#/?new", async (page) => { const select = page.locator("form.start select[name=agent]"); await select.locator("option").first().waitFor({ state: "attached" }); await select.selectOption("codex"); await page.locator("form.start .hint").waitFor(); }],
    ["session", "#/session/s-1", shown(".open-cards .permission")],
    ["conversation", "#/session/s-7", shown(".failure, img.picture"), { tall: 2600 }],
    ["prompt", "#/session/s-7", async (page) => { await page.locator(".queue").waitFor(); await page.locator("#prompt").fill("/"); await page.locator(".commands").waitFor(); }],
    ["visit", "#/session/s-8", shown(".strip-warn")],
    ["busy", "#/session/s-4", shown(".turn")],
    ["processes", "#/session/s-1/processes", shown("ol.timeline")],
    ["events", "#/session/s-1/events?offset=11", shown(".one pre")],
    ["no-terminal", "#/session/s-1/terminal", shown(".terminal-view")],
    ["terminal", "#/session/s-5/terminal", shown(".xterm-rows span")],
    ["changes", "#/session/s-6/changes", shown(".changes .plus")],
    ["machine", "#/machine", shown("[aria-label='Table of the checks']"), { tall: 2200 }],
    ["ended", "#/session/s-3", shown(".strip")],
    ["questions", "#/session/s-4", async (page) => { await page.locator(".badge-button").click(); await page.locator(".inbox .permission").waitFor(); }],
    ["keys", "#/session/s-4", async (page) => { await page.locator(".turn").first().waitFor(); await page.keyboard.press("?"); await page.locator("dl.keys").waitFor(); }],
    ["kill", null, async (page) => {
      const id = `k-${Math.floor(Math.random() * 1e6)}`;
      await daemon.session(id, { userId: "bob" });
      await daemon.ask(id, "ignore-term sleep 1000\nspawn exec sleep 600");
      await page.goto(new URL(`#/session/${id}/processes`, url).href);
      await page.locator("table.tree tr", { hasText: "sleep 600" }).waitFor();
      await page.locator(".session-head").getByRole("button", { name: /Kill/ }).waitFor();
      await page.keyboard.press("K");
      await page.locator("dialog").getByRole("button", { name: "Kill the session" }).click();
      await page.locator("dialog .killing").getByText("resists").first().waitFor();
    }],
    ["receipt", null, async (page) => { await page.locator("dialog .receipt").waitFor(); }],
    ["login", "#/", async (page) => { await page.getByLabel("Token").waitFor(); }, { login: false }],
  ];
  const phone = { size: { width: 390, height: 844 } };
  const looks = [["light", {}], ["dark", { theme: "dark" }], ["phone", phone], ["phone-dark", { ...phone, theme: "dark" }]];
  for (const [look, options] of looks) {
    const page = await openWindow(browser, daemon, { ...options, url });
    for (const [name, hash, act, more] of views) {
      if (only && !only.includes(name)) continue;
      const window = more && !more.tall ? await openWindow(browser, daemon, { ...options, ...more, url }) : page;
      const size = options.size ?? { width: 1280, height: 800 };
      await window.setViewportSize({ ...size, height: more?.tall ?? size.height });
      if (hash !== null) await window.goto(new URL(hash, url).href);
      await act(window);
      // Two frames: what came last is painted. The sparklines of the processes need a few looks.
      await window.waitForTimeout(name === "processes" ? 9000 : 300);
      await window.screenshot({ path: path.join(folder, `${name}-${look}.png`) });
      if (window !== page) await window.context().close();
      if (name !== "kill" && await page.locator("dialog").count()) { await page.keyboard.press("Escape"); await page.locator("dialog").waitFor({ state: "detached" }); }
      if (name === "questions") await page.locator(".inbox").getByRole("button", { name: "Close" }).click();
      if (name === "prompt") await page.locator("#prompt").fill("");
    }
    const violations = await page.evaluate(() => globalThis.violations);
    if (page.complaints.length || violations.length) console.log(look, page.complaints, violations);
    await page.context().close();
  }
} finally {
  await browser.close();
  await daemon.stop();
}
void program;
