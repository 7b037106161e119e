// acpx, a client that people use, through `agent-proxy acp` with the fake agent.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, mkdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

const program = process.env.AGENT_PROXY;
const acpx = fileURLToPath(new URL("node_modules/acpx/dist/cli.js", import.meta.url));
let folder, env;

before(() => {
  folder = mkdtempSync(path.join(tmpdir(), "agent-proxy-acpx-"));
  mkdirSync(path.join(folder, "run"), { mode: 0o700 });
  mkdirSync(path.join(folder, "work"));
  env = { PATH: process.env.PATH, HOME: folder, AGENT_PROXY_SOCKET: path.join(folder, "run/daemon.sock"), AGENT_PROXY_CONFIG_DIR: path.join(folder, "config") };
  run(program, "serve", "--detach", "--state-dir", path.join(folder, "state"));
});

after(() => {
  run(program, "stop");
  rmSync(folder, { recursive: true });
});

function run(command, ...args) {
  return ends(0, command, ...args);
}

function ends(status, command, ...args) {
  const ran = spawnSync(command, args, { env, cwd: path.join(folder, "work"), encoding: "utf8", timeout: 60_000 });
  assert.equal(ran.status, status, `${args.join(" ")}: ${ran.stdout}${ran.stderr}`);
  return ran.stdout;
}

const client = (...args) => clientEnds(0, ...args);
const clientEnds = (status, ...args) => ends(status, process.execPath, acpx, "--agent", `${program} acp --agent acp -- ${program} fake-agent --store ${folder}/store`, ...args);
const living = () => JSON.parse(run(program, "sessions", "--json")).filter((session) => session.status === "idle" || session.status === "busy");

test("one prompt", () => {
  assert.match(client("--format", "quiet", "exec", "say hello"), /hello/);
  assert.deepEqual(living(), []);
});

test("a permission is acpx's to give, or to refuse", () => {
  assert.match(client("--approve-all", "exec", "ask to write"), /permission: allow-once/);
  assert.match(clientEnds(5, "--deny-all", "exec", "ask to write"), /permission: reject-once/);
});

test("a conversation goes on from command to command, and nothing is left when it is closed", () => {
  client("--ttl", "1", "sessions", "new");
  assert.match(client("--ttl", "1", "prompt", "say one"), /one/);
  assert.match(client("--ttl", "1", "prompt", "history"), /1 before/);
  client("sessions", "close");
  const end = Date.now() + 60_000;
  while (living().length > 0) assert.ok(Date.now() < end, JSON.stringify(living()));
});
