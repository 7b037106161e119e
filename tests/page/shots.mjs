// Pictures of every view, in both themes and at the width of a phone: node shots.mjs FOLDER
import { mkdirSync } from "node:fs";
import path from "node:path";
import { startDaemon, startBrowser, openWindow, program } from "./lib.mjs";

const folder = process.argv[2] ?? "shots";
const dev = process.env.PAGE_URL;
const only = process.env.ONLY?.split(",");
mkdirSync(folder, { recursive: true });
const daemon = await startDaemon();
const browser = await startBrowser();
try {
  await daemon.session("s-1", { lifecycle: { title: "Login page: remember the user" }, userId: "ada", limits: { memoryBytes: 1 << 30, processes: 50 } }, ["--modes"]);
  await daemon.ask("s-1", "think The user wants a login page.\nsay ## What I found\nsay The **form** is in `src/login.rs`. Three things are missing:\nsay \nsay 1. a check of the *token*\nsay 2. the [documentation](https://example.com/docs)\nsay 3. tests\nsay \nsay ```rust\nsay /// Logs a user in.\nsay pub fn login(user: &str) -> Result<Session, Error> {\nsay     let token = format!(\"{user}-{}\", 42); // not yet random\nsay     Ok(Session { token })\nsay }\nsay ```\nplan\ntool Bash\nusage");
  await daemon.ask("s-1", "run ls -la / | head -5\ntokens 12000 900\ncost 12\nsay | file | lines |\nsay |---|---|\nsay | a.rs | 10 |\nsay | b.rs | 220 |");
  await daemon.prompt("s-1", "daemon exec sleep 500\nsetsid exec sleep 501\nspawn exec sleep 502\nask Delete the folder build?\nsay done");
  await daemon.session("s-2", { userId: "bob", lifecycle: { title: "Refactor the parser" } });
  await daemon.ask("s-2", "say hello\nrun true");
  await daemon.session("s-3", { userId: "bob" });
  await daemon.call("POST", "v1/sessions/s-3/kill", {});
  await daemon.session("s-4", { userId: "ada" });
  await daemon.prompt("s-4", "say working on it\nwait");
  await daemon.session("s-5", { agent: undefined, ...{} }).catch(() => null);
  const url = dev ?? daemon.url;
  const views = [["sessions", "#/"], ["start", "#/?new"], ["session", "#/session/s-1"], ["busy", "#/session/s-4"], ["processes", "#/session/s-1/processes"], ["events", "#/session/s-1/events?offset=12"], ["terminal", "#/session/s-1/terminal"], ["machine", "#/machine"], ["ended", "#/session/s-3"]];
  for (const [look, options] of [["light", {}], ["dark", { theme: "dark" }], ["phone", { size: { width: 390, height: 844 } }]]) {
    const page = await openWindow(browser, daemon, { ...options, url });
    for (const [name, hash] of views) {
      if (only && !only.includes(name)) continue;
      await page.goto(new URL(hash, url).href);
      await page.waitForTimeout(name === "processes" ? 3500 : 1200);
      await page.screenshot({ path: path.join(folder, `${name}-${look}.png`) });
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
