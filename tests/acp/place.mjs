// Places with a daemon of their own, and the look for processes that are left.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, mkdirSync, readFileSync, readdirSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";

export const program = process.env.AGENT_PROXY;
const DEADLINE = 60_000;

// Runs the program to its end.
export function run(place, ...args) {
  return runOther(place, {}, program, ...args);
}

// Runs a command to its end.
export function runOther(place, { status = 0, input }, command, ...args) {
  const ran = spawnSync(command, args, { env: place.env, cwd: place.work, input, encoding: "utf8", timeout: DEADLINE });
  assert.equal(ran.status, status, `${command} ${args.join(" ")}: ${ran.stdout}${ran.stderr}`);
  return ran.stdout;
}

export function makePlace() {
  const folder = mkdtempSync(path.join(tmpdir(), "agent-proxy-acp-"));
  mkdirSync(path.join(folder, "run"), { mode: 0o700 });
  mkdirSync(path.join(folder, "work"));
  const env = {
    PATH: process.env.PATH, HOME: folder, AGENT_PROXY_SOCKET: path.join(folder, "run/daemon.sock"), AGENT_PROXY_CONFIG_DIR: path.join(folder, "config"),
  };
  return { folder, env, work: path.join(folder, "work") };
}

// Waits for something, with a deadline.
export function soon(what, promise) {
  let timer;
  const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error(`${what} did not come`)), DEADLINE); });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

// Processes with a home in this place, whose environment or command line has a text.
export function processesWith(place, text) {
  return readdirSync("/proc").filter((name) => /^\d+$/.test(name)).filter((pid) => {
    try {
      const environment = readFileSync(`/proc/${pid}/environ`, "latin1");
      return environment.includes(`HOME=${place.folder}`) && `${environment}${cmdline(pid)}`.includes(text);
    } catch { return false; }
  });
}

// Processes of our sessions in this place.
export const processesOf = (place) => processesWith(place, "AGENT_PROXY_SESSION=");

export async function waitFor(what, holds) {
  const end = Date.now() + DEADLINE;
  while (!holds()) {
    assert.ok(Date.now() < end, `${what} did not come`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

export async function untilNone(place) {
  await waitFor("the end of all processes", () => processesOf(place).length === 0);
}

// Command line of a process; empty if it is gone.
export function cmdline(pid) {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "latin1").replaceAll("\0", " ");
  } catch { return ""; }
}
