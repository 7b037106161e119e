#!/usr/bin/env node
// Runs the program of this release. The first call downloads it, and checks it against the checksums of this package.
import { execFileSync, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import path from "node:path";

const { version } = JSON.parse(readFileSync(new URL("package.json", import.meta.url), "utf8"));
const cpu = { x64: "x86_64", arm64: "aarch64" }[process.arch];
const name = `agent-proxy-${version}-${cpu}-linux`;
const cache = path.join(process.env.XDG_CACHE_HOME || path.join(homedir(), ".cache"), "agent-proxy-npm");
const program = path.join(cache, name, "agent-proxy");

async function download() {
  const releases = process.env.AGENT_PROXY_RELEASES;
  if (!releases) throw new Error("AGENT_PROXY_RELEASES has no address: give that of the releases' page, …/releases/download");
  const line = readFileSync(new URL("SHA256SUMS", import.meta.url), "utf8").split("\n").find((one) => one.endsWith(`  ${name}.tar.gz`));
  if (!line) throw new Error(`this release has no program for ${process.platform} on ${process.arch}`);
  const url = `${releases}/v${version}/${name}.tar.gz`;
  const response = await fetch(url, { signal: AbortSignal.timeout(600_000) });
  if (!response.ok) throw new Error(`${url} cannot be downloaded: ${response.status}`);
  const archive = Buffer.from(await response.arrayBuffer());
  if (createHash("sha256").update(archive).digest("hex") !== line.split(" ")[0]) throw new Error(`${url} has another checksum than this package says`);
  mkdirSync(cache, { recursive: true, mode: 0o700 });
  const work = mkdtempSync(path.join(cache, "new-"));
  try {
    writeFileSync(path.join(work, "archive.tar.gz"), archive);
    execFileSync("tar", ["--extract", "--gzip", "--file", "archive.tar.gz"], { cwd: work });
    // Another call may have been faster.
    if (!existsSync(program)) renameSync(path.join(work, name), path.join(cache, name));
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

try {
  if (!existsSync(program)) await download();
} catch (error) {
  console.error(`agent-proxy: ${error.message}`);
  process.exit(1);
}
const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.on("error", (error) => { console.error(`agent-proxy: ${program}: ${error.message}`); process.exit(1); });
child.on("exit", (code, signal) => process.exit(signal ? 1 : code));
