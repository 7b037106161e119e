// Stands between codex-acp and Codex's app server, and has Codex ask before it runs anything that it does not trust: codex-acp
// sets an approval policy of its own at each turn, and none of its modes has that one.
const { spawn } = require("node:child_process");
const { readFileSync, realpathSync } = require("node:fs");
const { createRequire } = require("node:module");
const { createInterface } = require("node:readline");

// The Codex that codex-acp comes with.
const words = readFileSync(`/proc/${process.ppid}/cmdline`, "utf8").split("\0");
const wrapper = words.slice(1).find((word) => word && !word.startsWith("-"));
const codex = createRequire(realpathSync(wrapper)).resolve("@openai/codex/bin/codex.js");
const child = spawn(process.execPath, [codex, ...process.argv.slice(2)], { stdio: ["pipe", "inherit", "inherit"] });
child.on("error", (error) => {
  console.error(`starting ${codex} failed: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(code ?? (signal ? 1 : 0)));
child.stdin.on("error", () => {});

function asking(line) {
  if (!line.includes('"method":"thread/') && !line.includes('"method":"turn/start"')) return line;
  let message;
  try {
    message = JSON.parse(line);
  } catch {
    return line;
  }
  const begins = ["thread/start", "thread/resume", "thread/fork", "turn/start", "thread/settings/update"];
  if (!begins.includes(message.method) || typeof message.params !== "object") return line;
  // A turn always says it; a thread that says nothing gets it at its first turn.
  if (message.method !== "turn/start" && !("approvalPolicy" in message.params)) return line;
  message.params.approvalPolicy = "untrusted";
  message.params.approvalsReviewer = "user";
  return JSON.stringify(message);
}

const lines = createInterface({ input: process.stdin, crlfDelay: Infinity });
lines.on("line", (line) => child.stdin.write(asking(line) + "\n"));
lines.on("close", () => child.stdin.end());
