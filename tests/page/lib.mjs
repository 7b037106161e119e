// What the tests share: a daemon with the fake agent, a browser, and calls of the API.
import { after, afterEach } from "node:test";
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, readFileSync, writeFileSync, mkdirSync } from "node:fs";
import http from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";
import { chromium } from "playwright-core";

export const program = process.env.AGENT_PROXY ?? path.resolve(import.meta.dirname, "../../target/debug/agent-proxy");
const browserPath = process.env.CHROMIUM ?? "/usr/bin/chromium";

/** Longest time for anything to happen in a test, in milliseconds. */
export const PATIENCE = 20_000;

/** Starts a daemon with folders of its own. `agents` are rows of its catalog, as TOML. */
export async function startDaemon({ stateDir = true, agents = null } = {}) {
  const folder = mkdtempSync(path.join(tmpdir(), "page-test-"));
  for (const name of ["home", "config", "run", "work"]) mkdirSync(path.join(folder, name), { mode: 0o700 });
  if (agents) {
    mkdirSync(path.join(folder, "config/agent-proxy"), { mode: 0o700 });
    writeFileSync(path.join(folder, "config/agent-proxy/agents.toml"), agents);
  }
  const env = { PATH: process.env.PATH, HOME: path.join(folder, "home"), XDG_CONFIG_HOME: path.join(folder, "config"), XDG_RUNTIME_DIR: path.join(folder, "run") };
  const args = ["serve", "--json", "--listen", "127.0.0.1:0"];
  if (stateDir) args.push("--state-dir", path.join(folder, "state"));
  let child;
  let errors = "";
  let files = null;
  let url;
  const launch = async () => {
    child = spawn(program, args, { env, cwd: path.join(folder, "work"), stdio: ["ignore", "pipe", "pipe"] });
    child.stderr.on("data", (data) => { errors += data; });
    const first = await new Promise((resolve, reject) => {
      let text = "";
      const timer = setTimeout(() => reject(new Error(`the daemon said nothing: ${errors}`)), PATIENCE);
      child.stdout.on("data", (data) => {
        text += data;
        if (text.includes("\n")) { clearTimeout(timer); resolve(text.split("\n")[0]); }
      });
      child.on("exit", (code) => reject(new Error(`the daemon ended (${code}): ${errors}`)));
    });
    const { addresses } = JSON.parse(first);
    files?.close();
    files = process.env.PAGE_DIR ? await filesFrom(process.env.PAGE_DIR, `http://${addresses[0]}/`) : null;
    url = files?.url ?? `http://${addresses[0]}/`;
  };
  await launch();
  const token = readFileSync(path.join(folder, "config/agent-proxy/token"), "utf8").trim();
  const daemon = {
    get url() { return url; }, token, folder, env, work: path.join(folder, "work"), errors: () => errors,
    async call(method, route, body) {
      const response = await fetch(new URL(route, url), {
        method, headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" }, body: body === undefined ? undefined : JSON.stringify(body),
        signal: AbortSignal.timeout(60_000),
      });
      const text = await response.text();
      if (!response.ok) throw new Error(`${method} ${route}: ${response.status} ${text}`);
      return text ? JSON.parse(text) : null;
    },
    /** Starts a session with the fake agent. */
    session(id, more = {}, args = []) {
      return daemon.call("POST", "v1/sessions", { sessionId: id, agent: "acp", command: [program, "fake-agent", ...args], cwd: daemon.work, ...more });
    },
    prompt: (id, text) => daemon.call("POST", `v1/sessions/${id}/prompt`, { text, mode: "queue" }),
    ask: (id, text) => daemon.call("POST", `v1/sessions/${id}/ask`, { text }),
    /** Kills the daemon, and starts another with its state. */
    async crash() {
      const ended = new Promise((resolve) => child.once("exit", resolve));
      child.kill("SIGKILL");
      await ended;
      await launch();
    },
    async stop() {
      files?.close();
      const ended = new Promise((resolve) => child.once("exit", resolve));
      child.kill("SIGINT");
      const timer = setTimeout(() => child.kill("SIGKILL"), 15_000);
      await ended;
      clearTimeout(timer);
      rmSync(folder, { recursive: true, force: true, maxRetries: 3 });
    },
  };
  return daemon;
}

/** Serves the page's files from a folder, with the headers of the daemon, and passes the rest on: to try a change without a build. */
async function filesFrom(folder, daemon) {
  const given = await fetch(daemon);
  const types = { ".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html; charset=utf-8" };
  const target = new URL(daemon);
  const options = (request) => ({ host: target.hostname, port: target.port, path: request.url, method: request.method, headers: { ...request.headers, host: target.host, ...(request.headers.origin ? { origin: target.origin } : {}) } });
  const server = http.createServer((request, response) => {
    const { pathname } = new URL(request.url, daemon);
    const name = pathname === "/" ? "index.html" : /^\/page\/[^/]+\/(.+)$/.exec(pathname)?.[1];
    const file = name && path.join(folder, name);
    if (file && existsSync(file)) {
      response.writeHead(200, { "content-type": types[path.extname(file)], "content-security-policy": given.headers.get("content-security-policy") ?? "default-src 'self'", "cache-control": "no-store" });
      response.end(readFileSync(file));
      return;
    }
    const call = http.request(options(request), (answer) => { response.writeHead(answer.statusCode, answer.headers); answer.pipe(response); });
    call.on("error", () => response.destroy());
    response.on("close", () => call.destroy());
    request.pipe(call);
  });
  server.on("upgrade", (request, socket, head) => {
    const call = http.request(options(request));
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
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${server.address().port}/`, close: () => { server.closeAllConnections(); server.close(); } };
}

/** Starts a browser without anything of its user. */
export async function startBrowser(more = []) {
  return chromium.launch({
    executablePath: browserPath, headless: true,
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", ...more],
  });
}

/** Opens a window in a context of its own. All that the browser complains of is in `complaints`. */
export async function openWindow(browser, daemon, { hash = "#/", theme = "light", size = { width: 1280, height: 800 }, login = true, url = daemon.url, context = {} } = {}) {
  const owner = await browser.newContext({ viewport: size, colorScheme: theme, reducedMotion: "reduce", ...context });
  if (login) await owner.addInitScript((token) => { sessionStorage.setItem("agent-proxy-token", token); }, daemon.token);
  // No policy is broken, and no text runs.
  await owner.addInitScript(() => {
    globalThis.violations = [];
    globalThis.ran = [];
    document.addEventListener("securitypolicyviolation", (event) => globalThis.violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sourceFile}:${event.lineNumber} ${event.sample}`));
  });
  const page = await owner.newPage();
  page.setDefaultTimeout(PATIENCE);
  const complaints = [];
  page.on("console", (message) => { if (message.type() === "error" || message.type() === "warning") complaints.push(`${message.type()}: ${message.text()}`); });
  page.on("pageerror", (error) => complaints.push(`page error: ${error.stack ?? error}`));
  page.on("dialog", (dialog) => { complaints.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.complaints = complaints;
  if (hash !== null) await page.goto(new URL(hash, url).href);
  return page;
}

/** Sends a prompt from a session's page. */
export async function prompt(page, text) {
  await page.locator("#prompt").fill(text);
  await page.locator("#prompt").press("Enter");
  // The next one would not be sent while this is on its way.
  await page.waitForFunction(() => !document.querySelector("#prompt")?.value);
}

/** Fails if the page broke its policy, threw, or ran what it should show. */
export async function checkQuiet(page, allowed = []) {
  const { violations, ran } = await page.evaluate(() => ({ violations: globalThis.violations, ran: globalThis.ran }));
  const complaints = page.complaints.filter((text) => !allowed.some((pattern) => pattern.test(text)));
  const all = [...violations.map((text) => `policy: ${text}`), ...ran.map((text) => `ran: ${text}`), ...complaints];
  if (all.length) throw new Error(`the page is not quiet:\n${all.join("\n")}`);
}

/** Starts a daemon and a browser for all tests of a file. `open` opens a window, which is closed when its test ends. */
export async function setUp(options) {
  const daemon = await startDaemon(options);
  let browser;
  after(async () => { await browser?.close(); await daemon.stop(); });
  browser = await startBrowser();
  const windows = [];
  afterEach(async () => { for (const page of windows.splice(0)) await page.context().close(); });
  const open = async (more, of = daemon) => {
    const page = await openWindow(browser, of, more);
    windows.push(page);
    return page;
  };
  return { daemon, open };
}
