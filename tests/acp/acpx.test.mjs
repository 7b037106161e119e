// acpx, a real client of the protocol, through `agent-proxy acp` with the fake agent.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { rmSync } from "node:fs";
import path from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { cmdline, makePlace, processesOf, processesWith, program, run, runOther, soon, untilNone, waitFor } from "./place.mjs";

const acpx = fileURLToPath(new URL("node_modules/acpx/dist/cli.js", import.meta.url));
let place;

before(() => {
  place = makePlace();
  run(place, "serve", "--detach", "--state-dir", path.join(place.folder, "state"));
});

after(() => {
  run(place, "stop");
  rmSync(place.folder, { recursive: true });
});

const argv = (...args) => [acpx, "--agent", `${program} acp --agent acp -- ${program} fake-agent --store ${place.folder}/store`, ...args];
const clientEnds = (status, ...args) => runOther(place, { status }, process.execPath, ...argv(...args));
const client = (...args) => clientEnds(0, ...args);
const living = () => JSON.parse(run(place, "sessions", "--json")).filter((session) => session.status === "idle" || session.status === "busy");
// What keeps acpx's session for its next command ends after its time.
const ownerIsGone = () => waitFor("the end of acpx's server", () => processesWith(place, "node_modules/acpx").length === 0);

// acpx waits for its agent's end 100 ms: the daemon may be at it yet.
const nothingLives = () => waitFor("the end of all sessions", () => living().length === 0);

test("one prompt", async () => {
  assert.match(client("--format", "quiet", "exec", "say hello"), /hello/);
  await nothingLives();
});

test("a permission is acpx's to give, or to refuse", () => {
  assert.match(client("--approve-all", "exec", "ask to write"), /permission: allow-once/);
  assert.match(clientEnds(5, "--deny-all", "exec", "ask to write"), /permission: reject-once/);
});

test("a conversation goes on from command to command, a prompt is cancelled, and nothing is left when it is closed", async () => {
  client("--ttl", "1", "sessions", "new");
  assert.match(client("--ttl", "1", "prompt", "say one"), /one/);
  // The next command loads it.
  await ownerIsGone();
  assert.match(client("--ttl", "1", "prompt", "history"), /1 before/);
  // What is given to a server that ends meanwhile, acpx loses.
  await ownerIsGone();
  const waiting = spawn(process.execPath, argv("--ttl", "1", "prompt", "wait"), { env: place.env, cwd: place.work, stdio: "ignore" });
  const ended = new Promise((resolve) => waiting.on("exit", resolve));
  await waitFor("the turn", () => living().some((session) => session.status === "busy"));
  client("--ttl", "1", "cancel");
  await soon("the end of the cancelled prompt", ended);
  client("sessions", "close");
  await untilNone(place);
  await ownerIsGone();
  await nothingLives();
});

test("killed in the middle of a turn, it leaves nothing", async () => {
  const editor = spawn(process.execPath, argv("exec", "setsid exec sleep 3078\nwait"), { env: place.env, cwd: place.work, stdio: "ignore" });
  const ended = new Promise((resolve) => editor.on("exit", resolve));
  await waitFor("the tool", () => processesOf(place).some((pid) => cmdline(pid).includes("sleep 3078")));
  editor.kill("SIGKILL");
  await soon("the end", ended);
  await untilNone(place);
});
